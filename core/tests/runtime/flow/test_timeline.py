"""The timeline is a Chrome trace: one process each, named threads, arrows from a portion to who needed it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from plugrl.runtime import trace
from plugrl.runtime.flow import DRIVER, Item, Stage, run_flow
from plugrl.runtime.flow.timeline import Track, write_timeline


@pytest.fixture
def recording() -> Any:
    trace.enable()
    trace.take()
    yield
    trace.disable()


def work(item: Item) -> None:
    time.sleep(0.002)


def test_a_flow_becomes_spans_threads_and_arrows(tmp_path: Path, recording: None) -> None:
    stages = [
        Stage(name="gen", component="rollout", run=work, devices=(0,), size=2),
        Stage(name="reward", component=DRIVER, run=work, after=("gen",), size=2),
        Stage(name="update", component="actor", run=work, after=("gen", "reward"), devices=(1,), size=4),
    ]
    for _ in range(2):  # Two steps: no arrow goes from one to the next.
        run_flow(stages, 4)
    worker = [{"name": "actor.train", "ph": "X", "ts": 5.0, "dur": 2.0, "pid": 77, "tid": 9, "args": {}}]
    write_timeline(tmp_path / "timeline.json", [Track("driver", trace.take()), Track("actor.0", worker)])
    document = json.loads((tmp_path / "timeline.json").read_text())
    events = document["traceEvents"]
    assert all({"name", "ph", "pid", "tid"} <= event.keys() for event in events)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"driver", "actor.0"}
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    assert threads == {"rollout", "driver", "actor"}
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    assert sorted(span["name"] for span in spans) == ["gen"] * 4 + ["reward"] * 4 + ["update"] * 2
    starts, ends = ([e for e in events if e["ph"] == phase] for phase in "sf")
    # Each step: 2 from gen to reward, 2 from gen and 2 from reward to update.
    assert len(starts) == len(ends) == 12 and {e["id"] for e in starts} == {e["id"] for e in ends}
    by_id = {event["id"]: event for event in ends}
    for start in starts:
        end = by_id[start["id"]]
        assert start["ts"] <= end["ts"], "an arrow goes back in time"
        assert any(s["tid"] == start["tid"] and s["ts"] <= start["ts"] <= s["ts"] + s["dur"] for s in spans)
        assert any(s["tid"] == end["tid"] and s["ts"] == end["ts"] for s in spans)
