"""What every process of a run did and when, in one file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.errors import PlugRLError
from plugrl.runtime import trace

if TYPE_CHECKING:
    from plugrl.runtime.session import RaySession

Event = dict[str, Any]

_ANSWER_S = 10.0
_CALLS = "calls"


@dataclass
class Track:
    """The events of one process, as :mod:`plugrl.runtime.trace` records them; ``threads`` names some of its threads."""

    name: str
    events: Sequence[Event]
    threads: Mapping[int, str] = field(default_factory=dict)


def collect(session: RaySession) -> list[Track]:
    """Return the events of the driver and of all workers that are open; workers forget what they told.

    Raises PlugRLError when a worker does not answer within a few seconds.
    """
    import ray

    tracks = [Track("driver", trace.take())]
    asked = [
        (f"{group.name}.{rank}", actor.trace_events.remote())
        for group in session.open_groups()
        for rank, actor in enumerate(group.actors)
    ]
    try:
        answers = ray.get([answer for _, answer in asked], timeout=_ANSWER_S)
    except ray.exceptions.RayError as error:
        raise PlugRLError(f"A worker did not hand over its part of the timeline: {error}") from error
    tracks += [Track(name, events) for (name, _), events in zip(asked, answers, strict=True)]
    return tracks


def write_timeline(path: Path, tracks: Sequence[Track]) -> None:
    """Write the timeline: a process for each track, a line for each of its threads, arrows from input to consumer."""
    document = {"traceEvents": list(_all_events(tracks)), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(document, default=str), encoding="utf-8")


def _all_events(tracks: Sequence[Track]) -> Iterator[Event]:
    for number, track in enumerate(tracks):
        yield {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": track.name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": number, "tid": 0, "args": {"sort_index": number}}
        for thread, name in _thread_names(track).items():
            yield {"name": "thread_name", "ph": "M", "pid": number, "tid": thread, "args": {"name": name}}
        # Processes of different nodes may have one id, so each gets its own number.
        events = [{**event, "pid": number} for event in track.events]
        yield from events
        yield from _arrows(events, number)


def _thread_names(track: Track) -> dict[int, str]:
    """Name the threads: those of a flow after their component, the others by what is known."""
    names: dict[int, str] = {}
    for event in track.events:
        args = event.get("args", {})
        if "flow" in args:
            names[event["tid"]] = str(args["component"])
        else:
            names.setdefault(event["tid"], _CALLS)
    return {**names, **track.threads}


def _arrows(events: Sequence[Event], pid: int) -> Iterator[Event]:
    """Yield an arrow from the end of each portion to the beginning of every portion that needed it."""
    done: dict[str, list[Event]] = {}
    number = 0
    for event in sorted((e for e in events if e.get("ph") == "X" and "flow" in e["args"]), key=lambda e: e["ts"]):
        args = event["args"]
        for name in args.get("after", ()):
            for source in _latest(done.get(name, []), args["start"], args["stop"]):
                number += 1
                common = {"name": "portion", "cat": "flow", "id": number, "pid": pid}
                yield {**common, "ph": "s", "tid": source["tid"], "ts": source["ts"] + source["dur"] - 0.001}
                yield {**common, "ph": "f", "bp": "e", "tid": event["tid"], "ts": event["ts"]}
        done.setdefault(event["name"], []).append(event)


def _latest(sources: Sequence[Event], start: int, stop: int) -> Iterator[Event]:
    """Yield the newest portions that cover ``start`` to ``stop``; older ones are of earlier steps."""
    missing = set(range(start, stop))
    for source in reversed(sources):
        covered = missing & set(range(source["args"]["start"], source["args"]["stop"]))
        if covered:
            missing -= covered
            yield source
        if not missing:
            return
