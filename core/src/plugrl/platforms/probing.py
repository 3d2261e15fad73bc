"""Asking the platforms, each at most once in a process, whether they can be used here."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from plugrl.platforms.probe import Available, ProbeRecord, Unavailable
from plugrl.platforms.registry import DEFAULT_PRIORITY, PLATFORMS
from plugrl.registry import import_target

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


def _ask(name: str, meta: Any) -> ProbeRecord:
    priority = meta.get("priority", DEFAULT_PRIORITY)
    try:
        answer = _run_probe(name, meta.get("probe"))
    except Exception as error:  # Third-party code: whatever a probe raises means that its platform is not usable here.
        reason = f"its probe failed: {type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        return ProbeRecord(platform=name, priority=priority, available=False, reason=reason, traceback=text)
    if isinstance(answer, Available):
        return ProbeRecord(platform=name, priority=priority, available=True, count=answer.count, reason=answer.detail)
    return ProbeRecord(platform=name, priority=priority, available=False, reason=answer.reason)


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
