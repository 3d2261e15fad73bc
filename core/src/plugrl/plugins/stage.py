"""One plugin from its entry point to a list of claims, touching no registry: import, validate, stage.

This is a boundary to foreign code: whatever it raises ends as the state of that plugin, except Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import plugrl
from plugrl.errors import STOPS, IncompatiblePlugin, PluginError, one_line
from plugrl.plugins import guard, manifest
from plugrl.plugins.discovery import Discovered
from plugrl.plugins.ledger import Phase, PluginRecord
from plugrl.plugins.manifest import Plugin
from plugrl.provenance import Origin, current_origin, registering
from plugrl.registry import Registration, Registry, import_target, registry_of, staging

Claim = tuple[Registry[Any], Registration]


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What became of one plugin so far. ``claims`` is empty and ``record.state`` not active when it failed."""

    found: Discovered
    record: PluginRecord
    claims: tuple[Claim, ...] = ()

    @property
    def forces(self) -> bool:
        """Tell whether it overrides anything; such plugins are committed after those that do not."""
        return any(claim.force for _, claim in self.claims)

    def failed(self, phase: Phase, error: BaseException) -> Staged:
        """Return the same plugin in the state that ``error`` puts it in, without claims."""
        return Staged(found=self.found, record=fail(self.record, phase, error))


def new_record(found: Discovered, **changes: Any) -> PluginRecord:
    """Return the record of a discovered plugin."""
    return PluginRecord(
        name=found.name,
        value=found.value,
        distribution=found.distribution,
        version=found.version,
        path=found.path,
        **changes,
    )


def fail(record: PluginRecord, phase: Phase, error: BaseException) -> PluginRecord:
    """Return the record with the state, reason (one line) and traceback of ``error``.

    A manifest that did not pass validation is dropped, because it may hold anything.
    """
    incompatible = isinstance(error, IncompatiblePlugin)
    reason = one_line(error, with_type=not isinstance(error, PluginError))
    return replace(
        record,
        state="incompatible" if incompatible else "failed",
        phase=phase,
        reason=reason.rstrip("."),
        error=error,
        traceback="".join(traceback.format_exception(error)),
        manifest=None if phase == "validate" and not incompatible else record.manifest,
    )


def stage_plugin(found: Discovered) -> Staged:
    """Take a plugin as far as it gets; never raises but on Ctrl-C and SIGTERM."""
    steps: tuple[tuple[Phase, Callable[[PluginRecord], PluginRecord]], ...] = (
        ("import", _import),
        ("validate", _validate),
        ("stage", _stage),
    )
    record = new_record(found)
    with guard.loading(found.name), registering(found.origin), staging() as claims:
        for phase, step in steps:
            started = _busy_ms()
            try:
                with guard.watching_imports() as heavy:
                    record = step(record)
            except STOPS:
                raise
            except BaseException as error:
                record = fail(record, phase, error)
            spent = _busy_ms() - started
            record = replace(
                record,
                timings={**record.timings, phase: spent},
                heavy_imports=(*record.heavy_imports, *heavy),
            )
            if record.state != "active":
                forget_modules(claims)
                return Staged(found=found, record=record)
    return Staged(found=found, record=record, claims=tuple(claims))


def _busy_ms() -> float:
    """Return a clock in milliseconds that stands still while this thread waits for a processor that others use.

    It goes on while the thread sleeps or reads, which is the plugin's doing. Where the kernel does not tell, it is the
    wall's clock.
    """
    now = time.perf_counter() * 1000
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return now - int(file.read().split()[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return now


def forget_modules(claims: Iterable[Claim]) -> None:
    """Let the modules whose registrations are dropped register anew when somebody else imports them."""
    for _, claim in claims:
        if claim.target is None:
            sys.modules.pop(claim.origin.module, None)


def _import(record: PluginRecord) -> PluginRecord:
    if not record.value:
        raise PluginError("its entry_points.txt is damaged: write NAME = package.module:attribute")
    loaded = import_target(record.value)
    if not isinstance(loaded, Plugin):
        raise PluginError(f"{record.value} is a {type(loaded).__name__}, not a plugrl.plugins.Plugin")
    return replace(record, manifest=loaded)


def _validate(record: PluginRecord) -> PluginRecord:
    plugin = _manifest_of(record)
    problems = plugin.problems()
    if plugin.name != record.name:
        problems.append(f'its name "{plugin.name}" differs from its entry point "{record.name}"')
    if problems:
        raise PluginError("its manifest is wrong: " + "; ".join(problems))
    _check_api(record, plugin)
    _check_core(plugin)
    return record


def _check_api(record: PluginRecord, plugin: Plugin) -> None:
    current = manifest.PLUGIN_API
    supported = [version for version in (current - 1, current) if version > 0]
    if plugin.api not in supported:
        shown = " and ".join(map(str, supported))
        newer = plugin.api > current
        fix = "Upgrade plugrl" if newer else "Upgrade the plugin"
        raise IncompatiblePlugin(f"it was written for plugin API {plugin.api}; this plugrl supports {shown}. {fix}")
    if plugin.api < current:
        warnings.warn(
            f"{record.title} was written for plugin API {plugin.api}, which is dropped with API {current + 1}.",
            DeprecationWarning,
            stacklevel=2,
        )


def _check_core(plugin: Plugin) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(plugin.requires_core)
    except InvalidSpecifier as error:
        raise PluginError(f'requires_core "{plugin.requires_core}" is no version range such as >=0.1,<0.2') from error
    if not wanted.contains(plugrl.__version__, prereleases=True):
        raise IncompatiblePlugin(f"it needs plugrl {plugin.requires_core}; this is {plugrl.__version__}")


def _stage(record: PluginRecord) -> PluginRecord:
    """Claim what the manifest declares, beside what decorators claimed at import, and check the hooks."""
    plugin = _manifest_of(record)
    origin = current_origin() or Origin()
    for entry in plugin.entries():
        registry_of(entry.kind).register_many(entry.registrations(origin))
    if plugin.hooks is not None:
        from plugrl.plugins import hooks

        hooks.verify(importlib.import_module(plugin.hooks))
    return record


def _manifest_of(record: PluginRecord) -> Plugin:
    assert record.manifest is not None
    return record.manifest
