"""Channels between the driver and workers of real groups, and what a killed worker leaves."""

import os
import signal
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import torch

from plugrl.errors import RuntimeTimeout, UserError
from plugrl.runtime import WorkerGroup
from plugrl.runtime.channel import Channel

WORKER = "plugrl.testing.channel_workers:ChannelWorker"
WAIT = 30.0


@pytest.fixture(scope="module")
def group(ray_session):
    made = WorkerGroup(ray_session, WORKER, name="channel_users", devices=[0, 1])
    yield made.wait_ready(120)
    made.close()


def test_workers_and_driver_meet_in_a_channel(ray_session, group):
    channel = Channel.create(ray_session, "Env", maxsize=3)
    with pytest.raises(UserError, match="exists already"):
        Channel.create(ray_session, "Env")
    made = group.execute("produce", "Env", 5, 100_000)
    got = []
    while len(got) < 10:
        rank, number, tensor = channel.get(timeout=WAIT)
        assert tensor.shape == (100_000,) and bool((tensor == number).all())
        got.append((rank, number))
    assert made.wait(WAIT) == [5, 5]
    for rank in (0, 1):
        assert [number for who, number in got if who == rank] == list(range(5))
    taken = group.execute("consume", "Env")
    for number in range(20):
        channel.put((9, number, torch.full((70_000,), float(number))), timeout=WAIT)
    channel.close()
    shares = taken.wait(WAIT)
    assert sorted(shares[0] + shares[1]) == [(9, number) for number in range(20)]
    channel.delete()
    with pytest.raises(RuntimeTimeout, match="channel 'Env'"):
        Channel.connect(ray_session, "Env", timeout=0.2)


@pytest.mark.slow
def test_killed_producer_and_consumer_lose_nothing_that_was_put(ray_session):
    """The producer dies while a put waits for room, the consumer with an item that it had not looked at."""
    channel = Channel.create(ray_session, "kill", maxsize=4)
    doomed = WorkerGroup(ray_session, WORKER, name="doomed", devices=[0, 1]).wait_ready(120)
    pids = [doomed.known_processes()[rank].pid for rank in (0, 1)]
    doomed.execute("produce", "kill", 100, 100_000, ranks=[0])
    deadline = time.monotonic() + WAIT
    while not channel.full() and time.monotonic() < deadline:
        time.sleep(0.02)
    doomed.execute("ask_and_wait", "kill", 60.0, ranks=[1])
    while channel.info()["in_flight"] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert channel.info()["in_flight"] == 1
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    while (channel.info()["in_flight"] or channel.info()["consumers"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert time.monotonic() - begun < 5
    doomed.close(graceful=False)
    left = channel.qsize()
    assert left >= 4, "what was put survives its producer, and what was taken and not seen returns"
    got = [channel.get(timeout=WAIT) for _ in range(left)]
    assert [number for _, number, _ in got] == list(range(left))
    assert all(bool((tensor == number).all()) for _, number, tensor in got)
    channel.delete()
