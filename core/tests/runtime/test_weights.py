"""Weights from one sender to two receivers, bit for bit, and what happens when an end dies."""

import os
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.errors import WeightSyncError, WorkerDied, WorkerError
from plugrl.runtime import WorkerGroup, wait_all, weight_route

WORKER = "plugrl.testing.workers:WeightWorker"
SHAPES = (
    ("large", (3, 500_000), "float32"),  # 6 MB in buckets of 1 MB
    *((f"small.{i}", (7, i + 1), "float32") for i in range(60)),
    ("half", (1000, 301), "bfloat16"),
    ("flags", (13,), "bool"),
    ("bytes", (5, 3), "int8"),
    ("long", (129,), "int64"),
    ("scalar", (), "float64"),
    ("empty", (0, 4), "float32"),
)


def shm_files() -> list[str]:
    return sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else []


@pytest.fixture(scope="module")
def groups(ray_session):
    before = shm_files()
    sender = WorkerGroup(ray_session, WORKER, name="sender", devices=[0])
    receivers = WorkerGroup(ray_session, WORKER, name="receivers", devices=[1, 2])
    wait_all([sender.ready, receivers.ready], 120)
    yield sender, receivers
    sender.close()
    receivers.close()
    assert shm_files() == before


def connect(groups, **options):
    sender, receivers = groups
    route = weight_route(sender, receivers, bucket_megabytes=1, **options)
    handles = [sender.execute("connect", route), receivers.execute("connect", route, per_rank=[((0,), {}), ((1,), {})])]
    wait_all(handles, 20)


def transfer(groups, version, seed=0, **options):
    sender, receivers = groups
    receiving = receivers.execute("receive", SHAPES, seed, version)
    return wait_all([sender.execute("send", SHAPES, seed, version, **options), receiving], 30)[1]


@pytest.mark.parametrize("shared_memory", [True, False])
def test_tensors_arrive_bit_for_bit_again_and_again(groups, shared_memory):
    connect(groups, timeout_s=20, shared_memory=shared_memory)
    for version in (1, 2, 5):
        assert transfer(groups, version, seed=version) == [len(SHAPES)] * 2


def test_versions_never_fall_and_must_agree(groups):
    connect(groups, timeout_s=5)
    assert transfer(groups, 3) == [len(SHAPES)] * 2
    with pytest.raises(WorkerError, match="versions never fall") as caught:
        groups[0].execute("send", SHAPES, 0, 2).wait(20)
    assert isinstance(caught.value.__cause__, WeightSyncError)
    sender, receivers = groups
    receiving = receivers.execute("receive", SHAPES, 0, 9)
    with pytest.raises(WorkerError, match="version 9 were expected, 4 came"):
        wait_all([receiving, sender.execute("send", SHAPES, 0, 4)], 30)


def test_a_sender_that_breaks_off_is_seen_at_once_and_the_next_transfer_works(groups):
    connect(groups, timeout_s=20)
    started = time.monotonic()
    sender, receivers = groups
    sending, receiving = sender.execute("send", SHAPES, 0, 1, fail_after=3), receivers.execute("receive", SHAPES, 0, 1)
    with pytest.raises(WorkerError, match="the stream broke"):
        sending.wait(20)
    with pytest.raises(WorkerError, match="The sender gave up: ValueError: the stream broke"):
        receiving.wait(20)
    assert time.monotonic() - started < 10
    assert transfer(groups, 1) == [len(SHAPES)] * 2


def test_a_sender_without_receivers_gives_up_in_its_deadline(groups):
    connect(groups, timeout_s=1)
    started = time.monotonic()
    with pytest.raises(WorkerError, match="Receiver 0, 1 did not connect within 1 s"):
        groups[0].execute("send", SHAPES, 0, 1).wait(20)
    assert time.monotonic() - started < 5


def test_a_receiver_that_dies_is_named_by_driver_and_sender(groups):
    """The last test of the module: it ends the receivers."""
    sender, receivers = groups
    connect(groups, timeout_s=20)
    sending = sender.execute("send", SHAPES, 0, 1)
    receiving = receivers.execute("receive", SHAPES, 0, 1, per_rank=[((), {}), ((), {"die_after": 1})])
    started = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        wait_all([sending, receiving], 60)
    assert (caught.value.group, caught.value.rank) == ("receivers", 1)
    receivers.close(graceful=False)
    with pytest.raises(WorkerError, match="Receiver 1 is gone"):
        sending.wait(10)
    assert time.monotonic() - started < 15
