"""The variables of the device, read in one place. Imports no torch, so that the probe may use it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DEVICES = 2
MASK_VARIABLE = "VDEV_VISIBLE_DEVICES"
VARIABLES = (
    "VDEV_DEVICES",
    "VDEV_MEMORY_BYTES",
    "VDEV_STRICT_OPS",
    "VDEV_FAULT",
    "VDEV_MUTANT",
    "VDEV_BUILD",
    "VDEV_LOG",
    "VDEV_CACHE",
    "VDEV_NO_AVG",
    "VDEV_NO_HOST",
    "VDEV_AUTO",
)
"""All of them but the mask, which the runtime sets for each worker."""
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the variables say in this process.

    devices: physical devices of this machine. memory_bytes: budget of each, None without a limit. faults: ``kind@when``
    items. mutant: name of a deliberately wrong device. build: ``cpp``, ``python`` or empty for the best there is.
    log: folder of operator and collective logs. refuses_average, refuses_host: collectives know no average, or take no
    tensors of the host, like those of some vendors.
    """

    devices: int = DEFAULT_DEVICES
    memory_bytes: int | None = None
    strict_ops: bool = False
    faults: tuple[str, ...] = ()
    mutant: str = ""
    build: str = ""
    log: Path | None = None
    cache: Path | None = None
    refuses_average: bool = False
    refuses_host: bool = False
    auto: bool = False


def read_settings() -> Settings:
    """Read the variables. Raises ValueError, naming the variable, for a value that cannot be understood."""
    build = os.environ.get("VDEV_BUILD", "").strip().lower()
    if build not in ("", "cpp", "python"):
        raise ValueError(f"VDEV_BUILD must be cpp or python, not {build!r}.")
    devices = _number("VDEV_DEVICES")
    return Settings(
        devices=DEFAULT_DEVICES if devices is None else devices,
        memory_bytes=_number("VDEV_MEMORY_BYTES"),
        strict_ops=_flag("VDEV_STRICT_OPS"),
        faults=tuple(item.strip() for item in os.environ.get("VDEV_FAULT", "").split(",") if item.strip()),
        mutant=os.environ.get("VDEV_MUTANT", "").strip(),
        build=build,
        log=_path("VDEV_LOG"),
        cache=_path("VDEV_CACHE"),
        refuses_average=_flag("VDEV_NO_AVG"),
        refuses_host=_flag("VDEV_NO_HOST"),
        auto=_flag("VDEV_AUTO"),
    )


def visible_devices() -> tuple[int, ...]:
    """Return the physical ids that this process may use, by logical index.

    Raises ValueError, naming the mask, for an entry that is no device or stands twice.
    """
    count = read_settings().devices
    mask = os.environ.get(MASK_VARIABLE)
    if mask is None or read_settings().mutant == "mask_ignored":
        return tuple(range(count))
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    for entry in entries:
        if not entry.isdigit() or int(entry) >= count:
            raise ValueError(f"{MASK_VARIABLE}={mask}: {entry!r} is none of the devices 0 to {count - 1}.")
    if len(set(entries)) < len(entries):
        raise ValueError(f"{MASK_VARIABLE}={mask} names a device twice.")
    if read_settings().mutant == "two_workers_one_index":
        return tuple(range(len(entries)))  # the mask says how many, and not which
    return tuple(int(entry) for entry in entries)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or not int(text):
        raise ValueError(f"{name} must be a positive whole number, not {text!r}.")
    return int(text)


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE


def _path(name: str) -> Path | None:
    text = os.environ.get(name, "").strip()
    return Path(text) if text else None
