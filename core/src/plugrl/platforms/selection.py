"""Which platform this process runs on, chosen once: an explicit name, then ``VERL_PLATFORM``, then probes, then cpu."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from plugrl.environment import read_environment
from plugrl.errors import STOPS, PlatformUnavailable, PluginError, PlugRLError, UserError, one_line
from plugrl.platforms.base import PlatformBase
from plugrl.platforms.probe import ProbeRecord
from plugrl.platforms.probing import forget_probes, probe, probe_candidates
from plugrl.platforms.registry import PLATFORMS
from plugrl.plugins import hooks
from plugrl.plugins.guard import is_loading, loading_plugin

FALLBACK = "cpu"
_TOLD_IN_FULL = 2
"""Unusable platforms whose reasons stand in the one line that says why it is cpu; of more only the names do."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The platform that was chosen, and why.

    source: what decided. probes: the answers known by then, sorted by platform. caller: ``file:line`` that first needed
    the platform, because one that is chosen too early is hard to find otherwise.
    """

    platform_name: str
    source: Literal["argument", "VERL_PLATFORM", "probe", "fallback", "set_platform"]
    why: str
    probes: tuple[ProbeRecord, ...] = ()
    caller: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json`` and run records."""
        names = ("platform", "priority", "available", "count", "reason", "traceback")
        probes = [{name: getattr(record, name) for name in names} for record in self.probes]
        return {**{k: getattr(self, k) for k in ("platform_name", "source", "why", "caller")}, "probes": probes}


@dataclass
class _State:
    platform: PlatformBase | None = None
    selection: Selection | None = None


_lock = threading.RLock()
_state = _State()


# --------------------------------------------------------------------- choosing
def select(name: str | None = None) -> Selection:
    """Choose a platform without constructing it or making it current.

    Raises PlatformNotFound for a name nobody registered, UserError when two available platforms tie at the top.
    """
    _refuse_while_loading()
    with _lock:
        named = (name or "").strip()
        if named:
            return _selected(named, "argument", f'"{named}" was asked for')
        variable = read_environment().platform
        if variable:
            return _selected(variable, "VERL_PLATFORM", f"VERL_PLATFORM is {variable!r}")
        return _select_by_probes()


def _selected(name: str, source: Literal["argument", "VERL_PLATFORM"], why: str) -> Selection:
    key = str(PLATFORMS.entry(name).key)
    return Selection(platform_name=key, source=source, why=why, probes=(probe(key),))


def _select_by_probes() -> Selection:
    records = probe_candidates()
    usable = [record for record in records if record.available and record.platform != FALLBACK]
    if not usable:
        return Selection(platform_name=FALLBACK, source="fallback", why=_why_cpu(records), probes=records)
    top = max(record.priority for record in usable)
    best = [record.platform for record in usable if record.priority == top]
    if len(best) > 1:
        raise UserError(
            f"Platforms {' and '.join(best)} are both available with priority {top}. "
            "Set `platform:` in the configuration or VERL_PLATFORM."
        )
    why = f"it is available with the highest priority, {top}"
    return Selection(platform_name=best[0], source="probe", why=why, probes=records)


def _why_cpu(records: tuple[ProbeRecord, ...]) -> str:
    unusable = [
        f"{record.platform} is installed but unusable ({record.reason})"
        for record in records
        if record.platform != FALLBACK
    ]
    return ", ".join(unusable) or "no accelerator platform is installed"


# --------------------------------------------------------------------- the platform of this process
def get_platform(name: str | None = None, *, allow_unavailable: bool = False) -> PlatformBase:
    """Return the platform of this process, chosen and constructed on first use and once under threads.

    ``allow_unavailable`` lets a driver without devices hold a platform that the user named; it gives one warning.
    Raises PlatformNotFound, PlatformUnavailable with the reason, or UserError for a tie and for a ``name`` other than
    that of the platform already in use.
    """
    _refuse_while_loading()
    with _lock:
        if _state.platform is None:
            selection = replace(select(name), caller=_caller())
            _announce(selection, allow_unavailable)
            _state.platform = construct(selection.platform_name)
            _state.selection = selection
            hooks.fire("on_platform_selected", platform=_state.platform)
        elif name and name.strip():
            _check_same(name)
        return _state.platform


def construct(name: str) -> PlatformBase:
    """Return a new instance of a registered platform. Raises PlatformUnavailable, naming its origin, when it fails."""
    entry, cls = PLATFORMS.entry(name), PLATFORMS.get(name)
    try:
        return cls()
    except (*STOPS, PlugRLError):
        raise
    except BaseException as error:  # Third-party code: a driver that cannot be initialised, for example.
        raise PlatformUnavailable(
            f'Platform "{entry.key}" of {entry.origin} cannot be set up: {one_line(error)}. '
            "Run `plugrl plugins doctor` for the details."
        ) from error


def current_selection() -> Selection | None:
    """Return how the platform of this process was chosen, None before it was."""
    return _state.selection


def set_platform(platform: PlatformBase) -> None:
    """Make ``platform`` that of this process. Raises TypeError when it is no platform."""
    if not isinstance(platform, PlatformBase):
        raise TypeError(f"set_platform takes an instance of a PlatformBase subclass, got {platform!r}.")
    with _lock:
        name = _name_of(platform)
        _state.platform = platform
        _state.selection = Selection(
            platform_name=name, source="set_platform", why="it was set by code", caller=_caller()
        )


@contextmanager
def use_platform(platform: PlatformBase | str) -> Iterator[PlatformBase]:
    """Run a block on ``platform`` (an instance or a registered name); restores what was before, and may be nested."""
    with _lock:
        before = replace(_state)
        try:
            if isinstance(platform, str):
                _state.platform = None
                get_platform(platform)
            else:
                set_platform(platform)
        except BaseException:
            _restore(before)
            raise
    try:
        yield _current()
    finally:
        with _lock:
            _restore(before)


def reset() -> None:
    """Forget the platform of this process and all probe answers, so that the next use chooses again."""
    with _lock:
        _restore(_State())
        forget_probes()


def _current() -> PlatformBase:
    assert _state.platform is not None
    return _state.platform


def _restore(state: _State) -> None:
    _state.platform = state.platform
    _state.selection = state.selection


def _check_same(name: str) -> None:
    wanted = str(PLATFORMS.entry(name).key)
    selection = _state.selection
    if selection is not None and wanted != selection.platform_name:
        raise UserError(
            f'Platform "{wanted}" is asked for, but this process already runs on "{selection.platform_name}" '
            f"(since {selection.caller}: {selection.why}). Name one of them, or use plugrl.platforms.use_platform."
        )


def _announce(selection: Selection, allow_unavailable: bool) -> None:
    """Say why it is cpu, and refuse (or warn of) a platform that was named and is not usable here."""
    environment = read_environment()
    if selection.source == "fallback":
        unusable = [record for record in selection.probes if record.platform != FALLBACK]
        if environment.strict and unusable:
            raise PlatformUnavailable(f"PLUGRL_STRICT is set and the only choice is cpu: {selection.why}.")
        told = selection.why if len(unusable) <= _TOLD_IN_FULL else _names_alone(unusable)
        logger.warning("Running on cpu: %s.", told)
        return
    # Workers are told by argument what the driver chose: once is enough.
    if selection.source == "argument" and environment.platform and environment.fingerprint is None:
        if PLATFORMS.canonical(environment.platform) != selection.platform_name:
            logger.warning(
                "VERL_PLATFORM is %s; it gives way to %s, for which the run asks.",
                environment.platform,
                selection.platform_name,
            )
    record = next(record for record in selection.probes if record.platform == selection.platform_name)
    if record.available:
        return
    text = f'Platform "{record.platform}" is installed but not usable on this machine: {record.reason}.'
    if not allow_unavailable:
        raise PlatformUnavailable(f"{text} Run `plugrl plugins doctor` for the details.")
    logger.warning("%s Going on, because %s.", text, selection.why)


def _names_alone(unusable: list[ProbeRecord]) -> str:
    names = ", ".join(record.platform for record in unusable)
    return (
        f"none of the {len(unusable)} accelerators that are installed can be used here ({names}); "
        "`plugrl plugins explain platform` says why"
    )


def _name_of(platform: PlatformBase) -> str:
    for key in PLATFORMS.keys():
        entry = PLATFORMS.entry(key)
        cls = type(platform)
        if entry.value is cls or entry.target == f"{cls.__module__}:{cls.__qualname__}":
            return str(key)
    return platform.vendor_name


def _refuse_while_loading() -> None:
    """Raise in the plugin that asks for the platform while not all plugins are known: the answer could be wrong."""
    if is_loading():
        raise PluginError(
            f"{loading_plugin()} asks for the platform while plugins load, when not all platforms are known. "
            "Ask on first use instead, inside the function that needs it."
        )


def _caller() -> str:
    """Return ``file:line`` of the nearest frame outside this module and the standard library's context managers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") in (__name__, "contextlib")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
