"""The manifest: what a plugin declares, frozen, in a module that imports nothing heavy.

An entry point of the group ``plugrl.plugins`` names a module-level :class:`Plugin`. One group and one manifest per
distribution, because a vendor ships platform, engine and patches as a unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.plugins.entries import (
    AdvantageEntry,
    BalancerEntry,
    DatasetEntry,
    EngineEntry,
    Entry,
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
    bad_text,
)

PLUGIN_API = 1
"""Version of the contract between core and plugins; raised when any public contract breaks."""

ENTRY_POINT_GROUP = "plugrl.plugins"

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

CONTRIBUTIONS: Mapping[str, type[Entry]] = {
    "platforms": PlatformEntry,
    "engines": EngineEntry,
    "models": ModelEntry,
    "envs": EnvEntry,
    "rollouts": RolloutEntry,
    "rewards": RewardEntry,
    "advantages": AdvantageEntry,
    "losses": LossEntry,
    "loggers": LoggerEntry,
    "datasets": DatasetEntry,
    "hardware": HardwareEntry,
    "balancers": BalancerEntry,
    "weight_syncers": WeightSyncerEntry,
}
"""Field of :class:`Plugin` -> the entries it holds. A new kind is a line here and in ``registry.REGISTRY_MODULES``."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The manifest of one distribution.

    Args:
        name: short and unique, ``[a-z][a-z0-9_]*``; the same as the name of the entry point.
        api: the plugin API it was written for: a whole number, compared with :data:`PLUGIN_API`.
        requires_core: version range of ``plugrl``: ``>=0.1,<0.2``.
        summary: one line for ``plugrl plugins list``; ``url`` leads to more.
        hooks: module (dotted name) with pluggy hook implementations, light like the manifest.
        patches: changes to foreign code, see :class:`Patch`.
        worker_env: environment variables that every worker gets.
    """

    name: str
    api: int
    requires_core: str
    summary: str
    url: str = ""
    platforms: tuple[PlatformEntry, ...] = ()
    engines: tuple[EngineEntry, ...] = ()
    models: tuple[ModelEntry, ...] = ()
    envs: tuple[EnvEntry, ...] = ()
    rollouts: tuple[RolloutEntry, ...] = ()
    rewards: tuple[RewardEntry, ...] = ()
    advantages: tuple[AdvantageEntry, ...] = ()
    losses: tuple[LossEntry, ...] = ()
    loggers: tuple[LoggerEntry, ...] = ()
    datasets: tuple[DatasetEntry, ...] = ()
    hardware: tuple[HardwareEntry, ...] = ()
    balancers: tuple[BalancerEntry, ...] = ()
    weight_syncers: tuple[WeightSyncerEntry, ...] = ()
    hooks: str | None = None
    patches: tuple[Patch, ...] = ()
    worker_env: Mapping[str, str] | None = None

    def entries(self) -> tuple[Entry, ...]:
        """Return every contribution, platforms first."""
        return tuple(entry for name in CONTRIBUTIONS for entry in getattr(self, name))

    def problems(self) -> list[str]:
        """Return what is wrong with the manifest, each as a phrase that names the field; empty when it is sound."""
        found = list(_bad_identity(self))
        for name, entry_type in CONTRIBUTIONS.items():
            found += _bad_entries(name, getattr(self, name), entry_type)
        found += _bad_entries("patches", self.patches, Patch)
        if self.worker_env is not None and not _is_environment(self.worker_env):
            found.append(f"worker_env must map names of variables to texts, not {self.worker_env!r}")
        return found


def _bad_identity(plugin: Plugin) -> Iterator[str]:
    if not isinstance(plugin.name, str) or not _NAME.fullmatch(plugin.name):
        yield f"name {plugin.name!r} must match [a-z][a-z0-9_]*"
    if not isinstance(plugin.api, int) or isinstance(plugin.api, bool):
        yield f"api {plugin.api!r} must be a whole number"
    if not isinstance(plugin.requires_core, str):
        yield f"requires_core {plugin.requires_core!r} must be a version range such as >=0.1,<0.2"
    yield from bad_text("url", plugin.url)
    yield from bad_text("summary", plugin.summary)
    if isinstance(plugin.summary, str) and not plugin.summary.strip():
        yield "summary is empty"
    if plugin.hooks is not None and not isinstance(plugin.hooks, str):
        yield f"hooks {plugin.hooks!r} must be the dotted name of a module"


def _is_environment(variables: Any) -> bool:
    return isinstance(variables, Mapping) and all(
        isinstance(name, str) and _VARIABLE.fullmatch(name) and isinstance(value, str)
        for name, value in variables.items()
    )


def _bad_entries(name: str, entries: Any, entry_type: type[Any]) -> Iterator[str]:
    if not isinstance(entries, tuple):
        yield f"{name} must be a tuple, not {type(entries).__name__}"
        return
    for index, entry in enumerate(entries):
        if isinstance(entry, entry_type):
            yield from (f"{name}[{index}]: {problem}" for problem in entry.problems())
        else:
            yield f"{name}[{index}] must be a {entry_type.__name__}, not {type(entry).__name__}"
