"""What a run leaves behind: metrics, samples, curves and a report."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.tracking.plots import write_curves as write_curves
    from plugrl.tracking.report import write_report as write_report
    from plugrl.tracking.run_directory import RunDirectory as RunDirectory
    from plugrl.tracking.tracker import Tracker as Tracker

_EXPORTS = {
    "RunDirectory": "plugrl.tracking.run_directory",
    "Tracker": "plugrl.tracking.tracker",
    "write_curves": "plugrl.tracking.plots",
    "write_report": "plugrl.tracking.report",
}
__all__ = ["RunDirectory", "Tracker", "write_curves", "write_report"]


def __getattr__(name: str) -> Any:
    """Import on first use: a list of plugins needs none of it."""
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
