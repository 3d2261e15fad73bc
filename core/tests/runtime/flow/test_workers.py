"""A flow over real worker groups: their calls overlap, the first cause ends all waits, a death is told at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from plugrl.errors import WorkerDied
from plugrl.runtime import RaySession, WorkerGroup, wait_all
from plugrl.runtime.flow import Item, Stage, run_flow


@pytest.fixture
def groups(ray_session: RaySession) -> Any:
    """Two groups that answer, sleep and fail."""
    worker = "plugrl.testing.workers:EchoWorker"
    found = [WorkerGroup(ray_session, worker, name=f"flow{i}", devices=(i,)) for i in range(2)]
    wait_all([group.ready for group in found])
    yield found
    for group in found:
        group.close(graceful=False)


def calling(group: WorkerGroup, method: str, *args: Any) -> Any:
    def run(item: Item) -> Any:
        return group.execute(method, *args).wait(60)

    return run


def stage(name: str, run: Any, device: int, *after: str) -> Stage:
    return Stage(name=name, component=name, run=run, devices=(device,), after=after)


def test_calls_of_two_groups_overlap_and_each_sees_its_own_portions(groups: Any) -> None:
    first, second = groups
    stages = [stage("a", calling(first, "sleep", 0.25), 0), stage("b", calling(second, "sleep", 0.25), 1, "a")]
    record = run_flow(stages, 4)
    # One after another it would be 2 s, and is 1.25 s side by side; calls take a little themselves.
    assert record.makespan < 1.85, "the calls did not overlap"
    assert record.overlap_ratio > 0.3


def test_an_error_of_one_group_ends_the_wait_for_another(groups: Any) -> None:
    first, second = groups
    stages = [stage("slow", calling(first, "sleep", 30), 0), stage("wrong", calling(second, "fail"), 1)]
    start = time.monotonic()
    with pytest.raises(Exception, match="wrong on rank 0"):
        run_flow(stages, 2)
    assert time.monotonic() - start < 8, "it waited for the group that was well"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("flow-")]


def test_a_worker_that_is_killed_ends_the_flow(groups: Any) -> None:
    first, second = groups
    pid = second.execute("echo").wait(60)[0]["pid"]
    stages = [stage("slow", calling(first, "sleep", 30), 0), stage("killed", calling(second, "sleep", 30), 1)]
    timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    timer.start()
    start = time.monotonic()
    with pytest.raises(WorkerDied, match="flow1"):
        run_flow(stages, 1)
    assert time.monotonic() - start < 10
    timer.join()
