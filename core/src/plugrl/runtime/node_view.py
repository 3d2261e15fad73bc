"""What a node of the cluster says of itself: its mask and other variables, its devices and its plugins."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugrl.errors import PlugRLError, one_line
from plugrl.runtime.process import environment_of, parent

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase
    from plugrl.plugins.fingerprint import Row

_ANSWER_S = 60.0
"""Seconds a node has to say what it is, unless the caller gives another limit: Python starts there first."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node as its own processes see it.

    Attributes:
        host: its host name.
        variables: those that were asked for and are set where the node was started, by name; not those of the job.
        available, count, reason: what the probe of the run's platform says there; count 0 when it cannot count.
        fingerprint, rows: the plugins that a worker of this job loads there.
        broken: one sentence for each plugin that is broken there.
        error: why nothing else is known of the node; empty otherwise.
    """

    host: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    available: bool = False
    count: int = 0
    reason: str = ""
    fingerprint: str = ""
    rows: tuple[Row, ...] = ()
    broken: tuple[str, ...] = ()
    error: str = ""


def variables_of(platform: PlatformBase) -> tuple[str, ...]:
    """Return the names of the variables that decide which devices a node offers."""
    mask = platform.visible_devices_envvar()
    return (*([mask] if mask else ()), *platform.ray_noset_envvars(), "VERL_PLATFORM")


def view_here(platform_name: str, names: Sequence[str], environment: Mapping[str, str]) -> NodeView:
    """Describe the machine of this process, whose node was started with ``environment``."""
    from plugrl.platforms.probing import probe
    from plugrl.plugins import bootstrap

    variables = {name: environment[name] for name in names if name in environment}
    ledger = bootstrap.loaded()
    plugins: dict[str, Any] = {}
    if ledger is not None:
        broken = tuple(record.sentence() for record in ledger.records if record.is_broken)
        plugins = {"fingerprint": ledger.fingerprint, "rows": ledger.rows, "broken": broken}
    common: dict[str, Any] = {"host": socket.gethostname(), "variables": variables, **plugins}
    try:
        answer = probe(platform_name)
    except PlugRLError as error:
        return NodeView(**common, reason=one_line(error, with_type=False))
    return NodeView(**common, available=answer.available, count=answer.count, reason=answer.reason)


def view_nodes(
    node_ids: Sequence[str], platform: PlatformBase, platform_name: str, timeout_s: float = _ANSWER_S
) -> dict[str, NodeView]:
    """Ask every node at once and return the answers by node; one that cannot answer has its ``error`` set."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(_view_of_node)
    names = variables_of(platform)
    refs = {
        remote.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(platform_name, names): node_id
        for node_id in node_ids
    }
    done, late = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s) if refs else ([], [])
    views = {refs[ref]: NodeView(error=f"it did not answer within {timeout_s:g} s") for ref in late}
    for ref in late:
        ray.cancel(ref, force=True)
    for ref in done:
        try:
            views[refs[ref]] = ray.get(ref, timeout=timeout_s)
        except ray.exceptions.RayError as error:
            views[refs[ref]] = NodeView(error=f"Ray cannot run a process of this job there: {one_line(error)}")
    return views


def _view_of_node(platform_name: str, names: Sequence[str]) -> NodeView:
    # The process above a worker is Ray's own of the node. A worker's own environment holds the job's variables too.
    return view_here(platform_name, names, environment_of(parent()) or os.environ)
