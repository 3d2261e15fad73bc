"""Real threads: overlap, the driver's thread, the first cause, deadlines; nothing stays behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from plugrl.errors import RuntimeTimeout
from plugrl.runtime.cancellation import raise_if_cancelled
from plugrl.runtime.flow import DRIVER, Item, Stage, run_flow


def stage(name: str, run: Callable[[Item], object], device: int | None = None, *after: str, size: int = 1) -> Stage:
    component = DRIVER if device is None else name
    devices = () if device is None else (device,)
    return Stage(name=name, component=component, run=run, after=after, devices=devices, size=size)


def flow_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("flow-")]


def test_portions_overlap_in_real_time_as_on_the_virtual_clock() -> None:
    stages = [
        stage("a", lambda item: time.sleep(0.06), 0),
        stage("b", lambda item: time.sleep(0.06), 1, "a"),
        stage("c", lambda item: time.sleep(0.02), 2, "b"),
    ]
    record = run_flow(stages, 5)
    assert record.makespan == pytest.approx(0.06 + 0.06 + 0.02 + 4 * 0.06, rel=0.25)
    assert record.busy()["a"] == pytest.approx(0.3, rel=0.25)
    assert record.overlap_ratio > 0.5
    assert not flow_threads()


def test_the_drivers_stages_run_in_the_callers_thread_while_others_go_on() -> None:
    seen: list[str] = []

    def judge(item: Item) -> None:
        seen.append(threading.current_thread().name)
        time.sleep(0.05)

    record = run_flow([stage("gen", lambda item: time.sleep(0.05), 0), stage("reward", judge, None, "gen")], 4)
    assert set(seen) == {threading.current_thread().name} and len(seen) == 4
    assert record.makespan < 0.35, "rewards and generation did not overlap"


def test_the_first_cause_is_raised_and_the_others_end_at_their_next_wait() -> None:
    ended = threading.Event()

    def long(item: Item) -> None:
        try:
            for _ in range(1000):
                time.sleep(0.01)
                raise_if_cancelled()
        finally:
            ended.set()

    def wrong(item: Item) -> None:
        time.sleep(0.05)
        raise KeyError("first")

    start = time.monotonic()
    with pytest.raises(KeyError, match="first"):
        run_flow([stage("long", long, 0), stage("wrong", wrong, 1), stage("never", long, 2, "wrong")], 3)
    assert time.monotonic() - start < 1.0, "the other stage was waited for"
    assert ended.is_set() and not flow_threads()


def test_an_error_of_the_driver_ends_the_flow() -> None:
    def wrong(item: Item) -> None:
        raise ValueError("reward")

    with pytest.raises(ValueError, match="reward"):
        run_flow([stage("gen", lambda item: None, 0), stage("reward", wrong, None, "gen")], 5)
    assert not flow_threads()


def test_a_portion_that_takes_too_long_is_named() -> None:
    def slow(item: Item) -> None:
        for _ in range(1000):
            time.sleep(0.01)
            raise_if_cancelled()

    with pytest.raises(RuntimeTimeout, match=r"Stage 'slow' of slow has worked on items 0 to 1 for more than 0.1 s"):
        run_flow([stage("slow", slow, 0, size=2)], 4, timeout=0.1)
    assert not flow_threads()


def test_components_are_moved_around_their_phases() -> None:
    seen: list[str] = []
    moves = {"load": lambda name: seen.append(f"+{name}"), "unload": lambda name: seen.append(f"-{name}")}
    load = Stage(name="l", component="a", run=lambda item: None, devices=(0,), size=9, transfer="load")
    work = Stage(name="w", component="a", run=lambda item: seen.append("work"), devices=(0,), size=9, phase=1)
    unload = Stage(name="u", component="a", run=lambda item: None, devices=(0,), size=9, phase=2, transfer="unload")
    run_flow([load, work, unload], 1, transfers=moves)
    assert seen == ["+a", "work", "-a"]
