"""The lifecycle events a plugin can take part in. An implementation takes any subset of the arguments.

Mark implementations with :data:`hookimpl` in the module that ``Plugin.hooks`` names. Plugins are called one by one in
sorted order; no hook may depend on another plugin's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pluggy

PROJECT = "plugrl"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of ``plugrl plugins doctor``; ``fix`` says what to do when it is not ``ok``."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """What a plugin has to say about a configuration; a ``fatal`` one stops the run before any worker starts."""

    message: str
    fatal: bool = False


@hookspec
def on_plugins_loaded(report: Any) -> None:
    """Once in a process, after loading; ``report`` is the :class:`plugrl.plugins.Ledger`."""


@hookspec
def on_config(config: Any) -> list[Diagnostic]:
    """On the driver, with the checked configuration, which it must not change; returns diagnostics."""
    return []


@hookspec
def on_platform_selected(platform: Any) -> None:
    """Once in a process, when the platform is known."""


@hookspec
def on_worker_start(context: Any) -> None:
    """In each worker, after its device was assigned; an error stops the worker and names the plugin."""


@hookspec
def before_train_step(context: Any) -> None:
    """On the driver, before each training step."""


@hookspec
def after_train_step(context: Any) -> None:
    """On the driver, after each training step."""


@hookspec
def on_weights_synced(context: Any) -> None:
    """On the driver, after the rollout workers took a new version of the weights."""


@hookspec
def doctor_checks() -> list[Check]:
    """Further lines for ``plugrl plugins doctor``."""
    return []


@hookspec
def report_header() -> str:
    """A line for the header of a run: what this plugin runs on."""
    return ""
