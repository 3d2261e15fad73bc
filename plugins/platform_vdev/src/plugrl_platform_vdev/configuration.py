"""The variables of the device as the values that the C++ part takes."""

from __future__ import annotations

import os
from importlib import resources
from typing import Any

from plugrl_platform_vdev.faults import active, check_names, count_of
from plugrl_platform_vdev.settings import read_settings, visible_devices

_SLOW_MICROSECONDS = 1000


def configuration() -> dict[str, Any]:
    """Return the values. Raises ValueError, naming the variable, for what cannot be understood."""
    settings = read_settings()
    check_names()
    if settings.log is not None:
        settings.log.mkdir(parents=True, exist_ok=True)
    oom_at, oom_above = _out_of_memory()
    return {
        "count": len(visible_devices()),
        "budget": settings.memory_bytes or _host_memory(),
        "strict": settings.strict_ops,
        "declared": declared_operators() if settings.strict_ops else set(),
        "unsupported": set(active("op_unsupported")),
        "mutant": settings.mutant,
        "log_folder": "" if settings.log is None else str(settings.log.resolve()),
        "oom_at": oom_at,
        "oom_above": oom_above,
        "lost_at": count_of("device_lost") or 0,
        "slow_device": _slow_device(),
        "slow_microseconds": _SLOW_MICROSECONDS,
        "stale_rng": bool(active("stale_rng")),
        "memory_leak": bool(active("memory_leak")),
    }


def _host_memory() -> int:
    """Return the bytes of memory of this machine, which is where the memory of the devices is."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def declared_operators() -> set[str]:
    """Return the operators that strict mode allows, without overloads: ``aten::add``."""
    text = resources.files("plugrl_platform_vdev").joinpath("operators.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {line for line in lines if line}


def _out_of_memory() -> tuple[int, int]:
    """Return which allocation fails (``oom@3``), and the size above which all do (``oom@1000bytes``)."""
    at, above = 0, 0
    for when in active("oom"):
        digits = when.removesuffix("bytes")
        if not digits.isdigit():
            raise ValueError(f"VDEV_FAULT=oom@{when}: write oom@3 (the third) or oom@4096bytes (any larger one).")
        if digits == when:
            at = int(digits)
        else:
            above = int(digits)
    return at, above


def _slow_device() -> int:
    for when in active("slow"):
        digits = when.removeprefix("device")
        if not digits.isdigit():
            raise ValueError(f"VDEV_FAULT=slow@{when}: write slow@device1.")
        return int(digits)
    return -1
