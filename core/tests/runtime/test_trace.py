"""The trace of a process: off by default, bounded, one JSON object a line."""

import json
import time

import pytest

from plugrl.runtime import trace


@pytest.fixture(autouse=True)
def off_afterwards():
    trace.disable()
    yield
    trace.disable()


def test_nothing_is_recorded_unless_it_was_enabled(tmp_path):
    with trace.span("work", size=3) as attributes:
        assert attributes is None
    trace.instant("tick")
    assert trace.events() == [] and not trace.enabled()
    assert trace.flush(tmp_path / "trace.jsonl") == 0 and not (tmp_path / "trace.jsonl").exists()


def test_spans_and_instants_are_written_as_chrome_events(tmp_path):
    trace.enable()
    before = time.time() * 1e6
    with trace.span("work", size=3) as attributes:
        attributes["found"] = "x"
        trace.instant("tick", n=1)
        time.sleep(0.002)
    path = tmp_path / "trace.jsonl"
    assert trace.flush(path) == 2 and trace.events() == []
    tick, work = [json.loads(line) for line in path.read_text().splitlines()]
    assert (tick["ph"], tick["args"]) == ("i", {"n": 1})
    assert (work["ph"], work["name"], work["args"]) == ("X", "work", {"size": 3, "found": "x"})
    assert work["dur"] >= 2000 and work["ts"] <= tick["ts"] <= work["ts"] + work["dur"]
    assert abs(work["ts"] - before) < 5e6


def test_the_ring_keeps_the_last_events_and_a_span_that_failed():
    trace.enable(capacity=3)
    for index in range(5):
        trace.instant("tick", n=index)
    assert [event["args"]["n"] for event in trace.events()] == [2, 3, 4]
    with pytest.raises(ValueError):
        with trace.span("failing"):
            raise ValueError
    assert trace.events()[-1]["name"] == "failing"
