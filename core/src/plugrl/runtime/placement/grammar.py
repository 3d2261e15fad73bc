"""The grammar of placements: text to the resources of each process and back, on plain integers.

::

    value   := INT | [INT, ...] | [[INT, ...], ...] | string
    string  := segment ("," segment)*
    segment := ranks [":" ranks]              resources [: processes]
    ranks   := "all" | INT | INT "-" INT      spaces and the case of "all" do not matter

A segment of r resources and p processes: p = r when processes are left out; p >= r puts p/r processes in a row on each
resource; p < r gives each process r/p resources in a row. The grammar is RLinf's. A list of lists, which is not, names
the resources of each process: what strategies can make and no string can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from plugrl.runtime.placement.errors import Wrong

Processes = tuple[tuple[int, ...], ...]
"""The resources of each process, by rank."""

Value = int | str | list[int] | list[list[int]]
"""A placement as a configuration holds it."""

_Range = tuple[int, int] | None
"""First and last; None is ``all``."""

# Bounded, because Python refuses to read longer numbers.
_RANKS = re.compile(r"(?:(all)|(\d{1,18})(?:\s*-\s*(\d{1,18}))?)", re.IGNORECASE | re.ASCII)


def parse_placement(value: object, count: int, noun: str = "device") -> Processes:
    """Return the resources of each process that ``value`` asks for.

    Args:
        value: an integer, a list of integers, a list of such lists, or a string of the grammar.
        count: number of resources there are, counted from 0.
        noun: what one resource is called in messages.

    Raises:
        Wrong: the first mistake, with its code.
    """
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, (list, tuple)) for item in value):
        return _listed(value, count, noun)
    text = _as_text(value, noun)
    placed: list[tuple[int, ...]] = []
    used: set[int] = set()
    for resources, processes in _segments(text):
        chosen = _resources(resources, count, used, text, noun)
        used.update(chosen)
        placed += _spread(chosen, _process_count(processes, len(chosen), len(placed), text), text, noun)
    return tuple(placed)


def parse_ranks(value: object, count: int, noun: str = "node") -> tuple[int, ...]:
    """Return the ranks that ``value`` names: the grammar without processes. Raises Wrong."""
    if isinstance(value, str) and ":" in value:
        raise Wrong("syntax", f"{value!r} names {noun}s alone: leave out the ':'.")
    return tuple(rank for process in parse_placement(value, count, noun) for rank in process)


def format_placement(processes: Sequence[Sequence[int]]) -> str | list[list[int]]:
    """Return the shortest value that :func:`parse_placement` reads as ``processes``: text where a text can say it."""
    flat = [resource for process in processes for resource in process]
    if any(later < earlier for earlier, later in zip(flat, flat[1:], strict=False)):
        return [list(process) for process in processes]
    segments = list(_runs(processes))
    text = ",".join(segment for segment, _ in segments)
    try:
        same = parse_placement(text, flat[-1] + 1 if flat else 0) == tuple(tuple(process) for process in processes)
    except Wrong:
        same = False
    return text if same else [list(process) for process in processes]


# ------------------------------------------------------------------------------------------------------------- reading
def _as_text(value: object, noun: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, str, list, tuple)):
        raise Wrong("type", f"{value!r} is no placement: use {noun}s such as 0, 0-3, 0,2 or all.")
    if isinstance(value, (list, tuple)):
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            raise Wrong("type", f"{value!r} is no list of {noun}s.")
        return ",".join(map(str, value))
    return str(value).strip()


def _segments(text: str) -> list[tuple[_Range, tuple[_Range] | None]]:
    """Split a text; the processes of a segment are None where they are left out. What is empty is told first."""
    split = [segment.split(":") for segment in text.split(",")]
    if any(not side.strip() for segment in split for side in segment):
        raise Wrong("empty", f"{text!r} has an empty part.")
    found: list[tuple[_Range, tuple[_Range] | None]] = []
    for sides in split:
        if len(sides) > 2:
            raise Wrong("syntax", f"{':'.join(sides).strip()!r} in {text!r} has more than one ':'.")
        resources = _ranks(sides[0], text)
        found.append((resources, (_ranks(sides[1], text),) if len(sides) == 2 else None))
    return found


def _ranks(part: str, text: str) -> _Range:
    match = _RANKS.fullmatch(part.strip())
    if match is None:
        raise Wrong("syntax", f"{part.strip()!r} in {text!r} is neither a number, a range such as 0-3, nor all.")
    if match[1]:
        return None
    return int(match[2]), int(match[3] or match[2])


def _resources(ranks: _Range, count: int, used: set[int], text: str, noun: str) -> range:
    first, last = (0, count - 1) if ranks is None else ranks
    if ranks is None and not count:
        raise Wrong("out_of_range", f"{text!r} finds no {noun}: there is none.", wanted=1)
    if first > last:
        raise Wrong("descending", f"{first}-{last} in {text!r} counts down.")
    if last >= count:
        raise _missing(last, count, text, noun)
    chosen = range(first, last + 1)
    again = [resource for resource in used if resource in chosen]
    if again:
        raise Wrong("duplicate", f"{noun} {min(again)} stands twice in {text!r}.")
    if used and first < max(used):
        raise Wrong("not_ascending", f"{noun}s of {text!r} must ascend from part to part.")
    return chosen


def _missing(last: int, count: int, text: str, noun: str) -> Wrong:
    there = f"there {'is' if count == 1 else 'are'} {count} {noun}{'' if count == 1 else 's'}"
    return Wrong("out_of_range", f"{noun} {last} in {text!r} does not exist: {there}.", wanted=last + 1)


def _process_count(processes: tuple[_Range] | None, resources: int, used: int, text: str) -> int:
    if processes is None:
        return resources
    if processes[0] is None:
        raise Wrong("process_all", f"processes may not be 'all' in {text!r}.")
    first, last = processes[0]
    if first > last:
        raise Wrong("descending", f"processes {first}-{last} in {text!r} count down.")
    if first != used:
        raise Wrong("process_gap", f"processes of {text!r} must go on with rank {used}, not {first}.")
    return last - first + 1


def _spread(resources: range, count: int, text: str, noun: str) -> list[tuple[int, ...]]:
    if count % len(resources) == 0:
        each = count // len(resources)
        return [(resource,) for resource in resources for _ in range(each)]
    if len(resources) % count == 0:
        each = len(resources) // count
        return [tuple(resources[start : start + each]) for start in range(0, len(resources), each)]
    raise Wrong("indivisible", f"{len(resources)} {noun}s and {count} processes in {text!r} do not divide.")


def _listed(value: Sequence[Sequence[object]], count: int, noun: str) -> Processes:
    processes: list[tuple[int, ...]] = []
    for process in value:
        if not process:
            raise Wrong("empty", f"rank {len(processes)} of {value!r} has no {noun}.")
        numbers = [item for item in process if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
        if len(numbers) != len(process):
            raise Wrong("type", f"{process!r} is no list of {noun}s.")
        if max(numbers) >= count:
            raise _missing(max(numbers), count, repr(value), noun)
        if len(set(numbers)) != len(numbers):
            raise Wrong("duplicate", f"rank {len(processes)} of {value!r} names a {noun} twice.")
        processes.append(tuple(sorted(numbers)))
    return tuple(processes)


# ------------------------------------------------------------------------------------------------------------- writing
def _runs(processes: Sequence[Sequence[int]]) -> Iterator[tuple[str, int]]:
    """Yield each segment as text with the number of its processes, as long as one segment can say it."""
    start = 0
    while start < len(processes):
        width = len(processes[start])
        share = _sharing(processes, start)
        end = start + share
        while end < len(processes) and _goes_on(processes, end, width, share):
            end += share
        first, last = processes[start][0], processes[end - 1][-1]
        text = _span(first, last)
        yield (text if width == share == 1 else f"{text}:{_span(start, end - 1)}"), end - start
        start = end


def _sharing(processes: Sequence[Sequence[int]], start: int) -> int:
    """Return how many processes from ``start`` on hold exactly the same resource."""
    end = start + 1
    while end < len(processes) and len(processes[start]) == 1 and processes[end] == processes[start]:
        end += 1
    return end - start


def _goes_on(processes: Sequence[Sequence[int]], at: int, width: int, share: int) -> bool:
    after = processes[at - 1][-1] + 1
    return list(processes[at]) == list(range(after, after + width)) and _sharing(processes, at) == share


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
