"""Which units ran: one whose forward is never called gathers no parameters, and the model works on shards."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn

_log = logging.getLogger(__name__)


class UnitWatch:
    """Watches the first forward of every unit; ``units`` are (path, module)."""

    def __init__(self, units: Iterable[tuple[str, nn.Module]]) -> None:
        self._idle = {
            path: module.register_forward_pre_hook(partial(self._ran, path)) for path, module in units if path
        }

    def _ran(self, path: str, module: nn.Module, inputs: Any) -> None:
        handle = self._idle.pop(path, None)
        if handle is not None:
            handle.remove()

    def report(self) -> None:
        """Warn of units that did not run since the watch began, and end it."""
        idle, self._idle = self._idle, {}
        for handle in idle.values():
            handle.remove()
        if idle:
            _log.warning(
                "fsdp_config.wrap_policy: the forward of %d units never ran in the first step (%s): the model calls "
                "their layers from outside, so leave them out of the units, or they took no part.",
                len(idle),
                ", ".join(sorted(idle)[:5]),
            )
