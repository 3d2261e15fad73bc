"""Devices are handed out in order, all or none, counted, and come back from the dead; components move if they must."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from plugrl.errors import CallCancelled, PlugRLError, RuntimeTimeout
from plugrl.runtime.cancellation import Cancellation
from plugrl.runtime.flow.locks import DeviceLocks
from plugrl.runtime.flow.residency import DeviceMemoryError, Residency, Resident


def in_thread(*calls: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: [call() for call in calls], daemon=True)
    thread.start()
    return thread


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)


def test_waiters_are_served_in_order_and_only_at_the_outer_release() -> None:
    locks, served = DeviceLocks(), []
    locks.acquire("first", [0])
    locks.acquire("first", [0])
    threads = []
    for number in range(5):
        threads.append(in_thread(lambda n=number: locks.acquire(n, [0]), lambda n=number: served.append(n)))
        wait_for(lambda n=number: len(locks.waiting(0)) == n + 1)
    locks.release("first", [0])
    time.sleep(0.05)
    assert served == [], "a nested acquire was released by the inner exit"
    locks.release("first", [0])
    for number in range(5):
        wait_for(lambda n=number: len(served) == n + 1)
        locks.release(number, [0])
    assert served == [0, 1, 2, 3, 4]
    for thread in threads:
        thread.join(5)


def test_a_dead_owners_devices_go_to_the_next_within_seconds() -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        locks = DeviceLocks(is_alive=lambda owner: owner != "gone" or process.is_alive())
        locks.acquire("gone", [0, 1])
        thread = in_thread(lambda: locks.acquire("next", [1]))
        wait_for(lambda: locks.waiting(1) == ["next"])
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        start = time.monotonic()
        thread.join(5)
        assert locks.holder(1) == "next" and time.monotonic() - start < 5
    finally:
        process.kill()
        process.join(10)


def test_several_devices_come_together_or_not_at_all() -> None:
    """Owners that want the same devices in any order neither block each other nor overlap."""
    locks, busy, draw = DeviceLocks(), [0] * 4, random.Random(2)
    jobs = [[draw.sample(range(4), draw.randint(1, 4)) for _ in range(40)] for _ in range(6)]

    def work(owner: int) -> None:
        for devices in jobs[owner]:
            with locks.holding(owner, devices, timeout=20):
                for device in devices:
                    busy[device] += 1
                    assert busy[device] == 1, "two owners on one device"
                for device in devices:
                    busy[device] -= 1

    threads = [in_thread(lambda o=owner: work(o)) for owner in range(6)]
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a deadlock"
    locks.acquire("held", [3])
    with pytest.raises(RuntimeTimeout, match="b did not get device 0, 3 within 0.05 s: held holds device 3"):
        locks.acquire("b", [3, 0], timeout=0.05)
    assert locks.holder(0) is None, "a device was kept by a request that failed"


def test_a_consumer_that_lacks_its_data_lets_the_producer_pass() -> None:
    locks, ready = DeviceLocks(), threading.Event()
    thread = in_thread(lambda: locks.acquire("consumer", [0], ready=ready.is_set))
    wait_for(lambda: locks.waiting(0) == ["consumer"])
    with locks.holding("producer", [0], timeout=1):
        ready.set()
    thread.join(5)
    assert locks.holder(0) == "consumer"


def test_random_graphs_never_block() -> None:
    """Every stage of a random graph asks for its devices before its inputs are done."""
    draw = random.Random(8)
    for _ in range(15):
        count = draw.randint(2, 7)
        locks, done = DeviceLocks(), [threading.Event() for _ in range(count)]
        inputs = [[j for j in range(i) if draw.random() < 0.5] for i in range(count)]
        devices = [draw.sample(range(3), draw.randint(1, 3)) for _ in range(count)]

        def run(i: int, locks: Any = locks, done: Any = done, inputs: Any = inputs, devices: Any = devices) -> None:
            with locks.holding(i, devices[i], 20, lambda: all(done[j].is_set() for j in inputs[i])):
                done[i].set()

        order = draw.sample(range(count), count)
        threads = [in_thread(lambda i=i, run=run: run(i)) for i in order]
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), f"a deadlock: {inputs} on {devices}, asked for in the order {order}"


def test_a_cancelled_wait_ends_and_leaves_the_line() -> None:
    locks, flag, seen = DeviceLocks(), Cancellation(), []
    locks.acquire("a", [0])

    def ask() -> None:
        with flag.scope():
            try:
                locks.acquire("b", [0], timeout=None)
            except CallCancelled as error:
                seen.append(str(error))

    thread = in_thread(ask)
    wait_for(lambda: locks.waiting(0) == ["b"])
    flag.cancel("enough")
    thread.join(2)
    assert seen == ["enough"] and locks.waiting(0) == []


def test_more_devices_are_not_added_one_by_one() -> None:
    locks = DeviceLocks()
    locks.acquire("a", [0])
    with pytest.raises(PlugRLError, match="a holds device 0 and cannot ask for 0, 1 besides"):
        locks.acquire("a", [0, 1])


def resident(name: str, devices: tuple[int, ...], need: int, weights: int | None = None) -> Resident:
    return Resident(name, devices, need, lambda state: None, weights)


@pytest.mark.parametrize(("needs", "switches"), [((50, 40), 0), ((60, 60), 9)])
def test_components_that_fit_stay_and_others_move_once_for_each_switch(needs: tuple[int, int], switches: int) -> None:
    a, b = resident("a", (0,), needs[0]), resident("b", (0,), needs[1])
    residency = Residency([a, b], {0: 100})
    assert residency.settle() == (["b"] if switches else [])
    b.moves.clear()
    for _ in range(5):
        for name in ("a", "b"):
            with residency.using(name):
                assert residency.residents[name].state == "all"
    moves = a.moves + b.moves
    assert moves.count("all") == moves.count("away") == switches, "one on-load and one off-load for each switch"


def test_only_as_many_leave_as_must_and_the_one_used_longest_ago_first() -> None:
    parts = {name: resident(name, devices, 30) for name, devices in (("a", (0,)), ("b", (0, 1)), ("c", (0,)))}
    residency = Residency(list(parts.values()), {0: 70, 1: 70})
    assert residency.settle() == ["c"]
    for name in ("a", "b"):
        with residency.using(name):
            pass
    with residency.using("c"):
        assert {name: part.state for name, part in parts.items()} == {"a": "away", "b": "all", "c": "all"}


def test_a_trainer_keeps_its_weights_while_it_hands_them_out() -> None:
    """Weights go from one to the other on one device that never holds both whole."""
    actor, rollout = resident("actor", (0,), 80, weights=20), resident("rollout", (0,), 50)
    residency = Residency([actor, rollout], {0: 100})
    assert residency.settle() == ["actor"]
    for _ in range(2):
        with residency.using("actor"):
            assert (actor.state, rollout.state) == ("all", "away")
        with residency.using("actor", "rollout", weights_of=("actor",)):
            assert (actor.state, rollout.state) == ("weights", "all")
        with residency.using("rollout"):
            pass
    assert actor.moves == ["away", "all", "weights", "all", "weights"]


def test_what_cannot_fit_is_an_error_that_names_device_residents_and_request() -> None:
    residency = Residency([resident("actor", (0,), 80), resident("rollout", (0,), 50)], {0: 100})
    residency.check()
    residency.settle()
    with pytest.raises(DeviceMemoryError) as caught, residency.using("actor", "rollout"):
        pass
    assert "device 0 has 100 MiB, and actor needs 80 MiB there beside rollout 50 MiB" in str(caught.value)
    with pytest.raises(DeviceMemoryError, match="critic needs 101 MiB there beside nothing else"):
        Residency([resident("critic", (2,), 101)], {2: 100}).check()
