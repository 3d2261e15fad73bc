"""Asking the platforms, each at most once in a process, whether they can be used here."""

from __future__ import annotations

import threading
import traceback
from contextvars import copy_context
from typing import Any

from plugrl.errors import STOPS, one_line
from plugrl.platforms.probe import Available, ProbeRecord, Unavailable
from plugrl.platforms.registry import DEFAULT_PRIORITY, PLATFORMS
from plugrl.registry import import_target

DEADLINE_S = 60.0
"""Seconds that a probe has. A class that is asked because it has no probe gets five times as many: it imports torch."""

_lock = threading.RLock()
_probes: dict[str, ProbeRecord] = {}


def probe(name: str) -> ProbeRecord:
    """Ask one registered platform, once per process. Raises PlatformNotFound for an unknown name."""
    with _lock:
        entry = PLATFORMS.entry(name)
        if entry.key not in _probes:
            _probes[str(entry.key)] = _ask(str(entry.key), entry.meta)
        return _probes[str(entry.key)]


def probe_all() -> tuple[ProbeRecord, ...]:
    """Ask every registered platform, once per process; the doctor's table."""
    return tuple(probe(name) for name in PLATFORMS.keys())


def probe_candidates() -> tuple[ProbeRecord, ...]:
    """Ask the platforms that may be chosen without being named: those whose priority is not below zero."""
    names = (name for name in PLATFORMS.keys() if PLATFORMS.entry(name).meta.get("priority", DEFAULT_PRIORITY) >= 0)
    return tuple(probe(name) for name in names)


def _ask(name: str, meta: Any) -> ProbeRecord:
    priority = meta.get("priority", DEFAULT_PRIORITY)
    answer = _in_time(name, meta.get("probe"))
    if isinstance(answer, Available):
        count = answer.count if isinstance(answer.count, int) else 0
        return ProbeRecord(platform=name, priority=priority, available=True, count=count, reason=str(answer.detail))
    if isinstance(answer, Unavailable):
        return ProbeRecord(platform=name, priority=priority, available=False, reason=str(answer.reason))
    reason = f"its probe failed: {one_line(answer)}"
    text = "".join(traceback.format_exception(answer))
    return ProbeRecord(platform=name, priority=priority, available=False, reason=reason, traceback=text)


def _in_time(name: str, ask: Any) -> Available | Unavailable | BaseException:
    """Return what a probe answers or raises; one that hangs is left behind in its thread."""
    found: list[Available | Unavailable | BaseException] = []

    def run() -> None:
        try:
            found.append(_run_probe(name, ask))
        except BaseException as error:  # Third-party code: whatever it raises means that the platform is not usable.
            found.append(error)

    context = copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name=f"plugrl-probe-{name}", daemon=True)
    thread.start()
    deadline = DEADLINE_S if ask is not None else 5 * DEADLINE_S
    thread.join(deadline)
    if not found:
        return TimeoutError(f"no answer within {deadline:g} s")
    if isinstance(found[0], STOPS):
        raise found[0]
    return found[0]


def _run_probe(name: str, ask: Any) -> Available | Unavailable:
    if ask is None:
        usable = PLATFORMS.get(name)().is_platform_available(use_smi_check=True)
        return Available() if usable else Unavailable("it does not find its hardware")
    answer = (import_target(ask) if isinstance(ask, str) else ask)()
    if not isinstance(answer, Available | Unavailable):
        raise TypeError(f"a probe returns Available or Unavailable, got {answer!r}")
    return answer


def forget_probes() -> None:
    """Drop all answers, so that the next question is asked again."""
    with _lock:
        _probes.clear()
