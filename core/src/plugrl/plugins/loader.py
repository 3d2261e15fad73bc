"""Loading plugins: one function, the same for command line, driver, workers and tools.

Order: discover, filter, import, validate, stage, commit, extension modules, hooks. A plugin that fails leaves nothing
behind and stops no other; what the user named (a required plugin, an extension module) raises when it fails.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from plugrl.environment import Environment, read_environment
from plugrl.errors import PluginError, PlugRLError
from plugrl.plugins.commit import commit
from plugrl.plugins.discovery import Discovered, discover, normalize
from plugrl.plugins.extensions import extension_error, load_extensions
from plugrl.plugins.guard import is_loading, loading_plugin
from plugrl.plugins.ledger import Ledger, current_ledger, set_current_ledger
from plugrl.plugins.selection import Filter, PluginSettings, missing_requirements
from plugrl.plugins.stage import Staged, new_record, stage_plugin
from plugrl.registry import registries

__all__ = ["is_loading", "isolated", "load", "load_plugins", "loading_plugin"]

logger = logging.getLogger("plugrl.plugins")

_lock = threading.RLock()
_settings: PluginSettings | None = None


def load_plugins(settings: PluginSettings | None = None, *, fatal: bool = True, quiet: bool = False) -> Ledger:
    """Load every plugin once in this process and return what became of each.

    Args:
        settings: the section ``plugins`` of the configuration; None leaves the choice to ``PLUGRL_PLUGINS``, or to the
            settings of an earlier call.
        fatal: raise what the user depends on; otherwise it is only in ``ledger.errors``.
        quiet: write no warnings: for ``plugrl plugins list``, which shows the states, and for workers.

    Raises:
        PluginError: an allow list names nothing, a required plugin or an extension module failed, ``PLUGRL_STRICT`` met
            a broken plugin, plugins are already loaded under other lists, or a plugin calls this while it loads.
        ConfigError: an environment variable holds what it cannot mean.
    """
    global _settings
    if is_loading():
        raise PluginError(f"{loading_plugin()} calls load_plugins() while plugins load; it must not.")
    with _lock:
        ledger = current_ledger()
        if ledger is None:
            _settings = settings or PluginSettings()
            ledger = load(discover(), read_environment(), _settings)
            set_current_ledger(ledger)
            _announce(ledger, quiet=quiet)
        elif settings is not None and settings != _settings:
            ledger = _reconsider(ledger, settings)
    if fatal and ledger.errors:
        raise ledger.errors[0]
    return ledger


def load(found: Sequence[Discovered], environment: Environment, settings: PluginSettings) -> Ledger:
    """Load the given plugins and extension modules into the registries and return the ledger; the order of ``found``
    does not matter. Unlike :func:`load_plugins` it keeps no state of its own."""
    admission = Filter.build(environment.plugins, settings)
    ordered = sorted(found, key=_order)
    outcome: dict[Discovered, Staged] = {}
    admitted: dict[str, Discovered] = {}
    for plugin in ordered:
        refused_by = admission.refusal(plugin)
        holder = admitted.setdefault(normalize(plugin.name), plugin) if refused_by is None else None
        if refused_by is not None:
            outcome[plugin] = Staged(found=plugin, record=new_record(plugin, state="disabled", reason=refused_by))
        elif holder is not plugin and holder is not None:
            reason = f"{holder.title} has the same plugin name"
            outcome[plugin] = Staged(found=plugin, record=new_record(plugin, state="shadowed", reason=reason))
        else:
            outcome[plugin] = stage_plugin(plugin)
    committed, notes = commit(list(outcome.values()))
    for note in (*admission.doubtful(ordered), *notes):
        logger.warning("%s", note)
    extensions = load_extensions(environment.ext_modules)
    _register_hooks(committed)
    ledger = Ledger(records=tuple(item.record for item in committed), extensions=extensions)
    errors: list[PlugRLError] = [*admission.unmatched(ordered)]
    errors += [extension_error(record) for record in extensions if record.state == "failed"]
    errors += missing_requirements(settings.required, ledger)
    if environment.strict:
        errors += _strict_errors(ledger)
    return Ledger(records=ledger.records, extensions=extensions, errors=tuple(errors))


@contextmanager
def isolated() -> Iterator[None]:
    """Run the block as in a process without plugins, and restore registries, ledger and hooks afterwards: for tests."""
    global _settings
    from plugrl.plugins import hooks

    with ExitStack() as stack:
        for registry in registries().values():
            stack.enter_context(registry.temporary(built_in_only=True))
        stack.enter_context(hooks.isolated())
        before = current_ledger(), _settings
        set_current_ledger(None)
        _settings = None
        try:
            yield
        finally:
            set_current_ledger(before[0])
            _settings = before[1]


def _order(plugin: Discovered) -> tuple[str, str, str]:
    return normalize(plugin.distribution or ""), normalize(plugin.name), plugin.value


def _reconsider(ledger: Ledger, settings: PluginSettings) -> Ledger:
    """Answer a later call with other settings: requirements can be checked now, lists can no longer be obeyed."""
    first = _settings or PluginSettings()
    refused = Filter.build(None, settings)
    for record in ledger.active:
        plugin = Discovered(name=record.name, value=record.value, distribution=record.distribution)
        shown = refused.refusal(plugin)
        if shown is not None:
            raise PluginError(
                f"{shown} keeps out {record.title}, which is already loaded in this process. "
                "Call load_plugins(settings) before anything else loads plugins."
            )
    if settings.required == first.required:
        return ledger
    missing = missing_requirements(settings.required, ledger)
    return Ledger(records=ledger.records, extensions=ledger.extensions, errors=(*ledger.errors, *missing))


def _register_hooks(staged: Sequence[Staged]) -> None:
    for item in staged:
        manifest = item.record.manifest
        if item.record.state == "active" and manifest is not None and manifest.hooks is not None:
            from plugrl.plugins import hooks

            hooks.register(item.record.name, sys.modules[manifest.hooks])


def _strict_errors(ledger: Ledger) -> list[PlugRLError]:
    broken = [record for record in ledger.records if record.is_broken]
    objections = [record.sentence() for record in broken] + _expired(ledger)
    if not objections:
        return []
    error = PluginError("PLUGRL_STRICT is set: " + " ".join(objections))
    error.__cause__ = broken[0].error if broken else None
    return [error]


def _expired(ledger: Ledger) -> list[str]:
    """Say which patches are past the version that should have removed them."""
    if not any(record.manifest and record.manifest.patches for record in ledger.active):
        return []
    from plugrl.plugins.patches import expired_patches

    return [
        f"Plugin {item.plugin} still patches {item.patch.target}, which was to be removed in {item.patch.remove_in}."
        for item in expired_patches(ledger)
    ]


def _announce(ledger: Ledger, *, quiet: bool) -> None:
    """Write one line per broken plugin and tell the plugins' hooks."""
    for record in ledger.records:
        if record.is_broken and not quiet:
            logger.warning("Plugin %s", record.sentence())
    for text in [] if quiet else _expired(ledger):
        logger.warning("%s", text)
    if any(record.manifest and record.manifest.hooks for record in ledger.active):
        from plugrl.plugins import hooks

        hooks.fire("on_plugins_loaded", report=ledger)
