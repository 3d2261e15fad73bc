"""Handles: awaiting, cancelling, streams, durations, views of ranks, and what a group does when a rank fails."""

import asyncio
import os
import signal
import threading
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.errors import (
    CallCancelled,
    PeerLostError,
    PlugRLError,
    RuntimeTimeout,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
)
from plugrl.runtime import WorkerGroup, async_wait_all, restart, verdict, wait_all
from plugrl.runtime.handle import wait_together

CALLS = "plugrl.testing.call_workers:CallWorker"
COLLECTIVE = "plugrl.testing.workers:CollectiveWorker"
WAIT = 30.0


@pytest.fixture(scope="module")
def calls(ray_session):
    group = WorkerGroup(ray_session, CALLS, name="calls", devices=[0, 1, 2])
    yield group.wait_ready(120)
    group.close()


def test_results_stand_in_the_order_of_the_ranks_whoever_ends_first(calls):
    seconds = [((0.2,), {}), ((0.1,), {}), ((0.0,), {})]
    assert calls.execute("sleep", per_rank=seconds).wait(WAIT) == [0, 1, 2]
    assert calls.execute("later", per_rank=[(("c", 0.1), {}), (("b",), {}), (("a",), {})]).wait(WAIT) == list("cba")


def test_the_error_of_its_own_end_is_named_though_the_other_end_says_first_that_it_gave_up(calls):
    calls.execute("sleep", 0.5, ranks=[1])
    handles = [calls.execute("fail", "gave up", ranks=[0]), calls.execute("fail", ranks=[1])]
    with pytest.raises(WorkerError) as caught:
        wait_all(handles, WAIT)
    assert (caught.value.rank, "ValueError" in str(caught.value)) == (1, True)


def test_calls_that_depend_on_a_failed_one_are_stopped_and_their_workers_free(calls):
    failed, waiting = calls.execute("fail", ranks=[0]), calls.execute("sleep", 60.0, ranks=[1, 2])
    began = time.monotonic()
    with pytest.raises(WorkerError):
        wait_together([failed, waiting], WAIT, stop_s=5.0)
    assert time.monotonic() - began < 4.0
    assert len(calls.execute("echo").wait(3.0)) == 3


def test_views_of_ranks_share_no_state_between_threads(calls):
    def ask(ranks, found):
        view = calls.ranks(*ranks)
        found += [[row["rank"] for row in view.execute("echo").wait(WAIT)] for _ in range(30)]

    found = {ranks: [] for ranks in ((0, 2), (2, 1))}
    threads = [threading.Thread(target=ask, args=item) for item in found.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {ranks: [list(ranks)] * 30 for ranks in found}
    with pytest.raises(PlugRLError, match=r"has no rank 3: it has 3, from 0"):
        calls.ranks(0, 3)


def test_awaiting_leaves_the_event_loop_free(calls):
    async def main():
        late, ticks = 0.0, 0
        handle = calls.execute("sleep", 0.4)
        waiting = asyncio.ensure_future(async_wait_all([handle, calls.execute("echo", 1)]))
        while not waiting.done():
            began = time.monotonic()
            await asyncio.sleep(0.01)
            late, ticks = max(late, time.monotonic() - began), ticks + 1
        return await waiting, await handle, ticks

    (slept, echoed), again, ticks = asyncio.run(main())
    assert slept == again == [0, 1, 2] and [row["args"] for row in echoed] == [(1,)] * 3
    assert ticks > 8

    async def late():
        with pytest.raises(WorkerTimeout, match=r"rank 0, 1, 2 in sleep\(\)"):
            await calls.execute("sleep", 0.8).async_wait(0.2)

    asyncio.run(late())


def test_an_exception_can_be_asked_for_without_waiting(calls):
    handle = calls.execute("sleep", 0.3)
    assert handle.exception() is None and not handle.done()
    with pytest.raises(WorkerTimeout) as caught:
        handle.wait(0)
    assert isinstance(caught.value, RuntimeTimeout) and caught.value.remote_traceback == ""
    handle.wait(WAIT)
    failing = calls.ranks(1).execute("fail")
    while not failing.done():
        time.sleep(0.01)
    assert "wrong on rank 1" in str(failing.exception())


def test_then_makes_a_handle_of_what_a_function_says_of_the_results(calls):
    asked = []
    handle = calls.execute("sleep", 0.0).then(lambda ranks: asked.append(ranks) or sum(ranks)).then(str)
    assert [handle.wait(WAIT), wait_all([handle], WAIT)] == ["3", ["3"]]
    assert asked == [[0, 1, 2]]


def test_durations_are_those_of_the_workers(calls):
    naps = calls.execute("nap", per_rank=[((0.2,), {}), ((0.0,), {}), ((0.1,), {})])
    naps.wait(WAIT)
    assert 0.2 <= naps.consume_duration() < 1.0 and naps.consume_duration("min") < 0.1
    assert naps.consume_durations("mean")["nap"] == pytest.approx(0.1, abs=0.09)
    assert calls.execute("echo").then(len).wait(WAIT) == 3
    with pytest.raises(ValueError, match="none of max, mean, min"):
        naps.consume_duration("median")


def test_a_cancelled_call_stops_and_its_workers_go_on(calls):
    running, queued = calls.execute("sleep", 60.0), calls.execute("later", 1, 60.0)
    time.sleep(0.2)
    began = time.monotonic()
    assert queued.cancel() and running.cancel()
    for handle in (running, queued, running):
        with pytest.raises(CallCancelled, match="was cancelled"):
            handle.wait(WAIT)
    assert time.monotonic() - began < 4.0
    coroutine = calls.execute("later", 1, 60.0)
    time.sleep(0.1)
    assert coroutine.cancel()
    with pytest.raises(CallCancelled):
        asyncio.run(coroutine.async_wait(WAIT))
    done = calls.execute("later", 2)
    assert done.wait(WAIT) == [2, 2, 2] and not done.cancel()
    assert done.wait(WAIT) == [2, 2, 2]


def test_a_stream_gives_items_while_the_method_runs(calls):
    stream = calls.stream("count", per_rank=[((3,), {}), ((2, 0.01), {}), ((0,), {})])
    items = list(stream)
    assert [item for rank, item in items if rank == 0] == [0, 1, 2]
    assert [item for rank, item in items if rank == 1] == [0, 1] and len(items) == 5
    slow = calls.ranks(1).stream("count", 1000, 0.05, timeout=WAIT)
    assert [next(slow), next(slow)] == [(1, 0), (1, 1)]
    slow.close()
    assert calls.execute("echo").then(len).wait(10) == 3
    failing = calls.ranks(0).stream("count", 3, fail_at=1)
    assert next(failing) == (0, 0)
    with pytest.raises(WorkerError, match="ValueError: no 1"):
        next(failing)
    with pytest.raises(WorkerError, match=r"call it with stream\(\), not execute\(\)"):
        calls.ranks(0).execute("count", 3).wait(WAIT)
    with pytest.raises(WorkerError, match=r"call it with execute\(\), not stream\(\)"):
        list(calls.ranks(0).stream("echo"))


def test_a_hidden_question_finds_no_answer_and_nobody_waits_for_one(calls):
    assert calls.execute("question").wait(10) == [""] * 3


def test_an_open_group_can_be_attached_to_by_its_name(ray_session, calls):
    assert WorkerGroup.attach(ray_session, "calls") is calls
    with pytest.raises(RuntimeTimeout, match=r"No worker group 'nobody' within 0.1 s; open are: .*calls"):
        WorkerGroup.attach(ray_session, "nobody", timeout=0.1)


def test_a_group_may_return_errors_beside_results_and_outlive_a_rank(ray_session, calls, tmp_path):
    group = WorkerGroup(ray_session, CALLS, name="returning", devices=[0, 1], on_error="return").wait_ready(120)
    good, bad = group.execute("echo", per_rank=[((), {}), ((), {"x": 1})]).wait(WAIT), group.execute("fail").wait(WAIT)
    assert [row["rank"] for row in good] == [0, 1] and all(isinstance(error, WorkerError) for error in bad)
    outcomes = group.execute("die_once", str(tmp_path / "marker")).wait(WAIT)
    (error,) = [item for item in outcomes if isinstance(item, Exception)]
    assert isinstance(error, WorkerDied) and len(outcomes) == 2
    # The others are not concerned, and the dead rank's place holds its error from now on.
    assert calls.execute("echo").then(len).wait(WAIT) == 3
    assert sorted(type(item).__name__ for item in group.execute("echo").wait(WAIT)) == ["WorkerDied", "dict"]
    group.close()


def test_a_rank_that_died_is_started_anew_and_its_calls_are_repeated(ray_session, tmp_path):
    group = WorkerGroup(ray_session, CALLS, name="again", devices=[0], kwargs={"tag": "t"}, on_error=restart(1))
    before = group.wait_ready(120).known_processes()[0].pid
    dying, queued = group.execute("die_once", str(tmp_path / "marker")), group.execute("echo")
    (pid,) = dying.wait(120)
    (row,) = queued.wait(WAIT)
    assert pid == row["pid"] != before and row["tag"] == "t"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        group.execute("echo").wait(WAIT)
    group.close()


@pytest.mark.slow
def test_ranks_of_a_process_group_cannot_be_started_anew(ray_session):
    group = WorkerGroup(ray_session, COLLECTIVE, name="together", devices=[0, 1], on_error=restart(1))
    with pytest.raises(WorkerError, match="cannot restart single ranks"):
        group.wait_ready(120)


def test_ranks_that_wait_for_a_frozen_one_are_freed_as_having_lost_their_peer(ray_session, monkeypatch):
    monkeypatch.setattr(verdict, "_SETTLE_DEATH_S", 0.5)
    quick = ray_session.config.model_copy(update={"liveness_timeout_s": 1.0})
    monkeypatch.setattr(ray_session.watch, "_config", quick)
    group = WorkerGroup(ray_session, COLLECTIVE, name="freed", devices=[0, 1], on_error="return").wait_ready(120)
    handle = group.execute("sum_of_ranks", ranks=[0])
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(group.known_processes()[1].pid, signal.SIGSTOP)
    (lost,) = handle.wait(WAIT)
    assert time.monotonic() - began < 5.0
    assert isinstance(lost, PeerLostError) and (lost.group, lost.rank) == ("freed", 1)
    group.close()
    assert time.monotonic() - began < 8.0
