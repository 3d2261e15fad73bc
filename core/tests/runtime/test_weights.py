"""Weights from one sender to two receivers, bit for bit, and what happens when an end dies."""

import os
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.errors import ConfigError, WeightSyncError, WorkerDied, WorkerError
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


def connect(groups, kind="bucket", **options):
    sender, receivers = groups
    route = weight_route(sender, receivers, bucket_megabytes=1, options=WeightSyncConfig(type=kind), **options)
    handles = [sender.execute("connect", route), receivers.execute("connect", route, per_rank=[((0,), {}), ((1,), {})])]
    wait_all(handles, 20)
    return route


def transfer(groups, version, seed=0, **options):
    sender, receivers = groups
    receiving = receivers.execute("receive", SHAPES, seed, version)
    return wait_all([sender.execute("send", SHAPES, seed, version, **options), receiving], 30)[1]


@pytest.mark.parametrize(
    ("kind", "shared_memory"),
    [("bucket", True), ("bucket", False), ("patch", False), ("handle", True), ("full", True), ("full", False)],
)
def test_tensors_arrive_bit_for_bit_again_and_again(groups, kind, shared_memory):
    connect(groups, kind, timeout_s=20, shared_memory=shared_memory)
    for version in (1, 2, 5):
        assert transfer(groups, version, seed=version) == [len(SHAPES)] * 2


def test_a_kind_that_cannot_serve_the_receivers_is_refused(groups):
    with pytest.raises(ConfigError, match="weight_sync.type: handle cannot be used here, receivers 0, 1 do not share"):
        connect(groups, "handle", shared_memory=False)
    assert connect(groups, "auto", shared_memory=False).kind == "bucket"
    assert connect(groups, "auto").kind == "handle"


def test_a_sender_that_breaks_off_is_seen_at_once_and_the_next_transfer_works(groups):
    connect(groups, "full", timeout_s=20)
    connect(groups, timeout_s=20, shared_memory=False)
    started = time.monotonic()
    sender, receivers = groups
    sending, receiving = sender.execute("send", SHAPES, 0, 1, fail_after=3), receivers.execute("receive", SHAPES, 0, 1)
    with pytest.raises(WorkerError, match="the stream broke"):
        sending.wait(20)
    with pytest.raises(WorkerError, match="The sender gave up: ValueError: the stream broke") as caught:
        receiving.wait(20)
    assert isinstance(caught.value.__cause__, WeightSyncError)
    assert time.monotonic() - started < 10
    assert transfer(groups, 1) == [len(SHAPES)] * 2


@pytest.mark.parametrize("kind", ["handle"])
def test_a_receiver_that_dies_is_named_and_the_others_keep_their_version(groups, kind):
    """The last test of the module: it ends the receivers."""
    sender, receivers = groups
    route = connect(groups, kind, timeout_s=20)
    assert transfer(groups, 1) == [len(SHAPES)] * 2
    receivers.execute("connect", route, 0, ranks=[0]).wait(10)
    wait_all([sender.execute("connect", route)], 10)
    staying = receivers.execute("receive", SHAPES, 0, 2, ranks=[0])
    dying = receivers.execute("die_in_transfer", route, 1, 2, ranks=[1])
    sending = sender.execute("send", SHAPES, 0, 2)
    started = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        wait_all([sending, dying], 60)
    assert (caught.value.group, caught.value.rank) == ("receivers", 1)
    for handle in (sending, staying):
        with pytest.raises(WorkerError):
            handle.wait(10)
    asked = receivers.execute("loaded_version", ranks=[0])
    with pytest.raises(WorkerDied):  # as any wait of a group with a dead rank; the living one answers all the same
        asked.wait(10)
    while not asked.results() and time.monotonic() - started < 15:
        asked.done()
        time.sleep(0.05)
    assert asked.results() == {0: -1}
    assert time.monotonic() - started < 15
    receivers.close(graceful=False)
