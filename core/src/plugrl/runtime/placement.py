"""Which component runs on which devices: the placement grammar, parsed without Ray.

A value is an integer, a list of integers or a string (the grammar is RLinf's)::

    string  := segment ("," segment)*
    segment := ranks [":" ranks]              devices [: processes]
    ranks   := "all" | INT | INT "-" INT      spaces and the case of "all" do not matter

A segment of r devices and p processes: p = r when processes are left out; p >= r puts p/r processes in a row on each
device; p < r gives each process r/p devices in a row. A key may name several components: ``actor,ref: 0-1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from plugrl.errors import ConfigError, nearest, one_of

Processes = tuple[tuple[int, ...], ...]
"""The devices of each process, by rank."""

KEY = "cluster.component_placement"
_RANKS = re.compile(r"(?:(all)|(\d+)(?:\s*-\s*(\d+))?)", re.IGNORECASE)


class PlacementError(ConfigError):
    """A placement is wrong; ``errors`` lists ``(key path, code, message)``, all of the configuration's at once.

    ``wanted`` is the number of devices that would be enough, 0 where no device is missing.
    """

    def __init__(self, errors: Sequence[tuple[str, str, str]], wanted: int = 0):
        super().__init__("\n".join(f"{path}: {message}" for path, _, message in errors))
        self.errors = list(errors)
        self.wanted = wanted

    def __reduce__(self) -> tuple[type[PlacementError], tuple[list[tuple[str, str, str]], int]]:
        return type(self), (self.errors, self.wanted)


class _Wrong(Exception):
    def __init__(self, code: str, message: str, wanted: int = 0):
        super().__init__(message)
        self.code = code
        self.wanted = wanted


def resolve_placement(
    component_placement: Mapping[str, object], defaults: Mapping[str, object], device_count: int
) -> dict[str, tuple[int, ...]]:
    """Return the device of each rank, by component.

    Args:
        component_placement: values by component, or by several of them separated by commas.
        defaults: the components of this run with the value each has when the configuration leaves it out.
        device_count: number of devices of all nodes together, counted from 0.

    Raises:
        PlacementError: every mistake of the configuration, each with the path of its key.
    """
    errors: list[tuple[str, str, str]] = []
    values: dict[str, tuple[str, object]] = {name: (name, value) for name, value in defaults.items()}
    named: set[str] = set()
    for key, value in component_placement.items():
        for name in (part.strip() for part in str(key).split(",")):
            if name not in defaults:
                errors.append((f"{KEY}.{key}", "unknown_component", _unknown(name, defaults)))
            elif name in named:
                errors.append((f"{KEY}.{key}", "duplicate_component", f"component {name!r} is placed twice."))
            else:
                named.add(name)
                values[name] = (str(key), value)
    resolved: dict[str, tuple[int, ...]] = {}
    wanted = 0
    for name, (key, value) in values.items():
        try:
            resolved[name] = _one_device_each(parse_placement(value, device_count))
        except _Wrong as wrong:
            wanted = max(wanted, wrong.wanted)
            if (entry := (f"{KEY}.{key}", wrong.code, str(wrong))) not in errors:
                errors.append(entry)
    if errors:
        raise PlacementError(errors, wanted)
    return resolved


def parse_placement(value: object, device_count: int) -> Processes:
    """Return the devices of each process that ``value`` asks for; the private error carries a code and a message."""
    text = _as_text(value)
    segments = []
    for segment in text.split(","):
        devices, colon, processes = segment.partition(":")
        if not devices.strip() or (colon and not processes.strip()):
            raise _Wrong("empty", f"{text!r} has an empty part.")
        segments.append((_ranks(devices, text), _ranks(processes, text) if colon else None))
    placed: list[tuple[int, ...]] = []
    highest = -1
    for device_ranks, process_ranks in segments:
        devices_used = _devices(device_ranks, device_count, highest, text)
        count = _process_count(process_ranks, len(devices_used), len(placed), text)
        placed += _spread(devices_used, count, text)
        highest = devices_used[-1]
    return tuple(placed)


def _as_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, str, list, tuple)):
        raise _Wrong("type", f"{value!r} is no placement: use devices such as 0, 0-3, 0,2 or all.")
    if isinstance(value, (list, tuple)):
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            raise _Wrong("type", f"{value!r} is no list of devices.")
        return ",".join(map(str, value))
    return str(value).strip()


def _ranks(part: str, text: str) -> tuple[int, int] | None:
    """Return (first, last), None for ``all``."""
    match = _RANKS.fullmatch(part.strip())
    if match is None:
        raise _Wrong("syntax", f"{part.strip()!r} in {text!r} is neither a number, a range such as 0-3, nor all.")
    if match[1]:
        return None
    return int(match[2]), int(match[3] or match[2])


def _devices(ranks: tuple[int, int] | None, device_count: int, highest: int, text: str) -> list[int]:
    first, last = (0, device_count - 1) if ranks is None else ranks
    if first > last:
        raise _Wrong("descending", f"{first}-{last} in {text!r} counts down.")
    if last >= device_count:
        message = f"device {last} in {text!r} does not exist: there are {device_count} devices."
        raise _Wrong("out_of_range", message, wanted=last + 1)
    if first == highest:
        raise _Wrong("duplicate", f"device {first} stands twice in {text!r}.")
    if first < highest:
        raise _Wrong("not_ascending", f"devices of {text!r} must ascend from part to part.")
    return list(range(first, last + 1))


def _process_count(ranks: tuple[int, int] | None, devices: int, used: int, text: str) -> int:
    if ranks is None:
        if re.search(r":\s*all\s*(,|$)", text, re.IGNORECASE):
            raise _Wrong("process_all", f"processes may not be 'all' in {text!r}.")
        return devices
    first, last = ranks
    if first > last:
        raise _Wrong("descending", f"processes {first}-{last} in {text!r} count down.")
    if first != used:
        raise _Wrong("process_gap", f"processes of {text!r} must go on with rank {used}, not {first}.")
    return last - first + 1


def _spread(devices: list[int], count: int, text: str) -> list[tuple[int, ...]]:
    if count % len(devices) == 0:
        each = count // len(devices)
        return [(device,) for device in devices for _ in range(each)]
    if len(devices) % count == 0:
        each = len(devices) // count
        return [tuple(devices[start : start + each]) for start in range(0, len(devices), each)]
    raise _Wrong("indivisible", f"{len(devices)} devices and {count} processes in {text!r} do not divide.")


def _one_device_each(processes: Processes) -> tuple[int, ...]:
    for rank, devices in enumerate(processes):
        if len(devices) > 1:
            held = ", ".join(map(str, devices))
            raise _Wrong("several_devices", f"rank {rank} would hold devices {held}: a worker has one device.")
    return tuple(devices[0] for devices in processes)


def _unknown(name: str, defaults: Mapping[str, object]) -> str:
    close = nearest(name, defaults)
    hint = f" Did you mean {close!r}?" if close else ""
    return f"no component {name!r} in this run (it has {one_of(defaults)}).{hint}"
