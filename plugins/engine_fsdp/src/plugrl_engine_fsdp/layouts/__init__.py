"""The layouts, and which one a backend takes for a topology."""

from __future__ import annotations

from plugrl.engines.topology import Topology
from plugrl_engine_fsdp.layouts.base import Layout, LayoutContext
from plugrl_engine_fsdp.layouts.ddp import DdpLayout
from plugrl_engine_fsdp.layouts.fsdp2 import Fsdp2Layout
from plugrl_engine_fsdp.layouts.single import SingleLayout

__all__ = ["Layout", "LayoutContext", "choose_layout"]


def choose_layout(topology: Topology, *, trainable: bool) -> type[Layout]:
    """The layout of ``fsdp2`` and ``ddp``: sharded, replicated, or the plain policy where nothing needs a wrapper."""
    if topology.is_sharded:
        return Fsdp2Layout
    return DdpLayout if topology.dp_replicate > 1 and trainable else SingleLayout
