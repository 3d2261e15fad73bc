"""Calling the lifecycle hooks, plugin by plugin, so that one that fails stops no other.

pluggy's plain call stops at the first implementation that raises; every call here goes to one plugin at a time.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plugrl.errors import STOPS, ConfigError, PluginError, one_line

if TYPE_CHECKING:
    import pluggy

    from plugrl.plugins.hookspecs import Diagnostic

logger = logging.getLogger(__name__)

MAY_RAISE = frozenset({"on_worker_start"})
"""Hooks whose failure stops what called them; a failure of any other is recorded."""

_RETURNS = {"doctor_checks": "Check", "on_config": "Diagnostic"}
"""Hooks that return a list, and of what."""


@dataclass(frozen=True, kw_only=True)
class HookFailure:
    """A hook implementation that raised."""

    plugin: str
    hook: str
    reason: str
    traceback: str = field(repr=False)


_manager: pluggy.PluginManager | None = None
_failures: list[HookFailure] = []


def register(name: str, module: ModuleType) -> None:
    """Add the hook implementations of a plugin, under its name, after :func:`verify` accepted them.

    A module that two plugins name is called once, for the first of them.
    """
    global _manager
    if _manager is None:
        _manager = _new_manager()
    if not _manager.has_plugin(name) and not _manager.is_registered(module):
        _manager.register(module, name)


def verify(module: ModuleType) -> None:
    """Check the hook implementations of a module without registering them.

    Raises:
        PluginError: it has none, an unknown hook, or an argument that the hook does not have.
    """
    import pluggy

    trial = _new_manager()
    try:
        trial.register(module)
        trial.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"hooks in {module.__name__}: {' '.join(str(error).split())}") from error
    if not trial.get_hookcallers(module):
        raise PluginError(f"hooks in {module.__name__}: no function is marked with plugrl.plugins.hookimpl")


def fire(hook: str, **arguments: Any) -> list[Any]:
    """Call one hook of every plugin, in sorted order, and return the results that are not None.

    Raises:
        PluginError: ``on_worker_start`` of a plugin raised; the text names the plugin. Other failures are recorded, see
            :func:`failures`, and logged the first time.
    """
    results: list[Any] = []
    manager = _manager
    if manager is None:
        return results
    plugins = manager.list_name_plugin()
    for name, plugin in plugins:
        others = [other for _, other in plugins if other is not plugin]
        try:
            returned = manager.subset_hook_caller(hook, others)(**arguments)
            _check_returned(hook, returned)
        except STOPS:
            raise
        except BaseException as error:  # Third-party code: the failure of this plugin alone.
            _note_failure(name, hook, error)
        else:
            results += returned
    return results


def _check_returned(hook: str, returned: list[Any]) -> None:
    """Raise TypeError unless a hook returned what its callers rely on."""
    from plugrl.plugins import hookspecs

    for result in returned:
        if hook == "report_header" and not isinstance(result, str):
            raise TypeError(f"it must return a text, not {result!r}")
        if hook in _RETURNS:
            kind = getattr(hookspecs, _RETURNS[hook])
            if not isinstance(result, list | tuple) or not all(isinstance(item, kind) for item in result):
                raise TypeError(f"it must return a list of plugrl.plugins.{kind.__name__}, not {result!r}")


def diagnose(config: Any) -> list[Diagnostic]:
    """Ask every plugin about the configuration and return what they say.

    Raises:
        ConfigError: a diagnostic is fatal.
    """
    found: list[Diagnostic] = [item for result in fire("on_config", config=config) for item in result]
    fatal = [item.message for item in found if item.fatal]
    if fatal:
        raise ConfigError("\n".join(fatal))
    return found


def failures() -> tuple[HookFailure, ...]:
    """Return the hook failures of this process, oldest first, one per plugin and hook."""
    return tuple(_failures)


@contextmanager
def isolated() -> Iterator[None]:
    """Start without hooks and failures, and restore both when the block ends: for tests."""
    global _manager, _failures
    before = _manager, _failures
    _manager, _failures = None, []
    try:
        yield
    finally:
        _manager, _failures = before


def _note_failure(name: str, hook: str, error: BaseException) -> None:
    reason = one_line(error)
    if hook in MAY_RAISE:
        raise PluginError(f"Plugin {name} failed in its hook {hook}: {reason}") from error
    if any((failure.plugin, failure.hook) == (name, hook) for failure in _failures):
        return
    text = "".join(traceback.format_exception(error))
    _failures.append(HookFailure(plugin=name, hook=hook, reason=reason, traceback=text))
    logger.warning("Plugin %s failed in its hook %s: %s. Run `plugrl plugins doctor %s`.", name, hook, reason, name)


def _new_manager() -> pluggy.PluginManager:
    import pluggy

    from plugrl.plugins import hookspecs

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager
