"""The plugin mechanism: what plugins declare, how they are loaded, and what became of each.

A plugin author needs :class:`Plugin`, the entries and ``hookimpl``; a host calls :func:`load_plugins` and reads the
:class:`Ledger` it returns. Nothing here imports torch, ray or a plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plugrl.plugins.entries import (
    AdvantageEntry,
    BalancerEntry,
    ConfigSection,
    DatasetEntry,
    EngineEntry,
    EnvEntry,
    HardwareEntry,
    LoggerEntry,
    LossEntry,
    ModelEntry,
    Patch,
    PlatformEntry,
    RewardEntry,
    RolloutEntry,
    WeightSyncerEntry,
)
from plugrl.plugins.manifest import PLUGIN_API, Plugin

if TYPE_CHECKING:
    from plugrl.plugins.hookspecs import Check, Diagnostic, hookimpl
    from plugrl.plugins.ledger import Ledger, PluginRecord, current_ledger
    from plugrl.plugins.loader import load_plugins
    from plugrl.plugins.selection import PluginSettings

__all__ = [
    "PLUGIN_API",
    "AdvantageEntry",
    "BalancerEntry",
    "Check",
    "ConfigSection",
    "DatasetEntry",
    "Diagnostic",
    "EngineEntry",
    "EnvEntry",
    "HardwareEntry",
    "Ledger",
    "LoggerEntry",
    "LossEntry",
    "ModelEntry",
    "Patch",
    "PlatformEntry",
    "Plugin",
    "PluginRecord",
    "PluginSettings",
    "RewardEntry",
    "RolloutEntry",
    "WeightSyncerEntry",
    "current_ledger",
    "hookimpl",
    "load_plugins",
]

# The host's side is imported on first use: a manifest needs none of it.
_LAZY = {
    "Check": "hookspecs",
    "Diagnostic": "hookspecs",
    "hookimpl": "hookspecs",
    "Ledger": "ledger",
    "PluginRecord": "ledger",
    "current_ledger": "ledger",
    "load_plugins": "loader",
    "PluginSettings": "selection",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
