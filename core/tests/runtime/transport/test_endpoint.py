"""Messages between two endpoints: what arrives is what was sent, in order, or an error at both ends."""

import gc
import logging
import os
import threading
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from plugrl.errors import PeerLostError, RuntimeTimeout, TransportError
from plugrl.runtime import trace
from plugrl.runtime.transport.segments import ArenaPool, NoMemory


@dataclass
class Sample:
    """A dataclass that holds tensors."""

    tokens: torch.Tensor
    name: str
    extra: torch.Tensor | None = None


def equal(left, right):
    if isinstance(left, torch.Tensor):
        same = isinstance(right, torch.Tensor) and left.dtype == right.dtype and left.shape == right.shape
        return same and torch.equal(left.cpu(), right.cpu())
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, Sample):
        return equal(vars(left), vars(right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return left == right


def trees():
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "tensor": torch.randn(7, 3),
        "dtypes": [torch.tensor([1.5, -2]).to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64)],
        "bool int8": (torch.tensor([True, False, True]), torch.tensor([-1, 5], dtype=torch.int8)),
        "0-dim and empty": {"zero": torch.tensor(3), "empty": torch.empty(0, 4), "none": None},
        "not contiguous": [base.t(), base[:, ::2], base[1:3].expand(2, 2, 6), base.flip(0)],
        "dataclass": Sample(torch.arange(5), "x", extra=None),
        "nested": {"a": [{"b": (torch.ones(2), "text", 3.5)}], 7: None, "c": {"d": torch.zeros(1, dtype=torch.bool)}},
        "array": {"np": np.arange(6, dtype=np.int16).reshape(2, 3), "empty": np.empty((0, 2))},
        "object": {"set": {1, 2}, "bytes": b"abc" * 50_000, "long text": "y" * 200_000},
        "complex": torch.tensor([1 + 2j]).conj(),
    }


@pytest.mark.parametrize("transport", ["inline", "shm", "net"])
def test_trees_arrive_equal_by_every_way(open_endpoint, transport):
    a, b = open_endpoint(inline_bytes=2**20), open_endpoint()
    for name, tree in trees().items():
        if transport == "shm" and name == "object":
            tree = {**tree, "t": torch.ones(1)}
        a.send(b.address, tree, transport=transport)
        assert equal(tree, b.recv(a.address)), f"{name} by {transport}"


def test_messages_of_a_tag_keep_their_order_whatever_their_size(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    sizes = [1, 300_000, 2, 100_000, 3, 1_000_000, 4] * 3
    for index, size in enumerate(sizes):
        a.send(b.address, (index, torch.full((size,), float(index))), transport="net" if size > 99_999 else None)
    for index, size in enumerate(sizes):
        number, tensor = b.recv(a.address)
        assert number == index and tensor.shape == (size,) and bool((tensor == index).all())


def test_tags_and_directions_do_not_mix(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    a.send(b.address, "second", tag="y")
    a.send(b.address, "first", tag="x")
    b.send(a.address, "back", tag="x")
    assert b.recv(a.address, "x") == "first" and b.recv(a.address, "y") == "second"
    assert a.recv(b.address, "x") == "back"


def test_many_threads_send_and_receive_at_once(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    wrong = []

    def talk(source, target, tag):
        for number in range(40):
            source.send(target.address, {"n": number, "t": torch.full((30_000,), number)}, tag)
            got = target.recv(source.address, tag)
            if got["n"] != number or int(got["t"][-1]) != number:
                wrong.append((tag, number, got["n"]))

    threads = [threading.Thread(target=talk, args=(*pair, f"t{i}")) for i in range(3) for pair in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_arrives_may_be_changed_and_the_sender_may_change_what_it_sent(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    for size in (10, 300_000):
        sent = torch.ones(size)
        a.send(b.address, sent)
        sent.zero_()
        got = b.recv(a.address)
        assert bool((got == 1).all())
        got.add_(1)
        a.send(b.address, torch.ones(size))
        assert bool((b.recv(a.address) == 1).all()) and bool((got == 2).all())


def test_one_process_passes_by_reference(open_endpoint):
    a = open_endpoint()
    tensor = torch.ones(3)
    a.send(a.address, tensor)
    assert a.recv(a.address) is tensor


@pytest.mark.parametrize("transport", ["shm", "net"])
def test_memory_of_both_ends_returns_to_its_baseline(open_endpoint, transport):
    a, b = open_endpoint(), open_endpoint()
    a.send(b.address, 0)
    b.recv(a.address)
    baseline = len(os.listdir("/proc/self/fd"))
    got = []
    for _ in range(3):
        a.send(b.address, [torch.ones(2_000_000), torch.zeros(5)], transport=transport)
        got.append(b.recv(a.address))
    if transport == "shm":
        assert a.hub.pool.held_blocks == 3
        part = got[0][1][1:]
        del got[0]
        gc.collect()
        time.sleep(0.2)
        assert a.hub.pool.held_blocks == 3, "a view of one tensor keeps the message's memory"
        assert bool((part == 0).all())
        del part
    got.clear()
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline and (a.hub.pool.held_bytes or len(b.hub.arenas)):
        time.sleep(0.05)
    assert (a.hub.pool.held_blocks, a.hub.pool.held_bytes, len(b.hub.arenas)) == (0, 0, 0)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == baseline


def test_the_way_is_chosen_shown_and_overridden(open_endpoint):
    a, b, far = open_endpoint(), open_endpoint("near"), open_endpoint("far", node="elsewhere")
    small, large = torch.ones(256), torch.ones(262_144)
    trace.enable()
    try:
        for target, tree, transport in (
            (a, large, None),
            (b, small, None),
            (b, large, None),
            (far, large, None),
            (b, large, "net"),
            (b, small, "shm"),
        ):
            a.send(target.address, tree, transport=transport)
            assert equal(tree, target.recv(a.address))
        rows = [event["args"] for event in trace.events() if event["name"] == "transport.send"]
    finally:
        trace.disable()
    assert [row["transport"] for row in rows] == ["local", "inline", "shm", "net", "net", "shm"]
    assert all(row["reason"] and row["bytes"] is not None for row in rows)
    assert rows[4]["reason"] == "asked for" and "shared memory" in rows[2]["reason"]
    for target, transport in ((far, "shm"), (b, "local"), (b, "ipc"), (b, "inline"), (a, "net")):
        with pytest.raises(TransportError, match=f'transport="{transport}" cannot carry'):
            a.send(target.address, large, transport=transport)
    assert len(a.hub.connections_of(far.hub.uid)[0].flows) == 2 and a.hub.connections_of(far.hub.uid)[0].network


def test_devices_that_count_strictly_use_the_network(open_endpoint):
    a = open_endpoint(device="d0", strict_device=True)
    same, other = open_endpoint(device="d0"), open_endpoint(device="d1")
    trace.enable()
    try:
        for target in (same, other):
            a.send(target.address, torch.ones(100_000))
            target.recv(a.address)
        ways = [event["args"]["transport"] for event in trace.events() if event["name"] == "transport.send"]
    finally:
        trace.disable()
    assert ways == ["shm", "net"]


def test_full_memory_falls_back_with_one_warning(open_endpoint, caplog, monkeypatch):
    a, b = open_endpoint(memory_bytes=1), open_endpoint()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            a.send(b.address, torch.ones(100_000))
            assert bool((b.recv(a.address) == 1).all())
    assert [record.message for record in caplog.records if "No shared memory" in record.message].__len__() == 1
    c = open_endpoint(memory_bytes=1)
    with pytest.raises(TransportError, match="is not possible"):
        c.send(b.address, torch.ones(100_000), transport="shm")

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    pool = ArenaPool("u", 2**30)
    with pytest.raises(NoMemory, match="No space left"):
        pool.allocate(2**20)
    pool.close()


def test_an_in_place_receive_that_does_not_fit_fails_at_both_ends_and_the_pair_goes_on(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    errors = []

    def send():
        try:
            a.send_tensor(b.address, torch.ones(4), timeout=20)
        except TransportError as error:
            errors.append(str(error))

    for wrong in (torch.zeros(3), torch.zeros(4, dtype=torch.int64)):
        errors.clear()
        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(TransportError, match="was expected"):
            b.recv_tensor(a.address, wrong)
        thread.join()
        assert len(errors) == 1 and "was expected" in errors[0]
    target = torch.zeros(4)
    thread = threading.Thread(target=a.send_tensor, args=(b.address, torch.ones(4)))
    thread.start()
    assert b.recv_tensor(a.address, target) is target and bool((target == 1).all())
    thread.join()


class Unloadable:
    """Can be pickled and not be made again."""

    def __reduce__(self):
        return (_refuse, ())


def _refuse():
    raise ValueError("not here")


def test_what_cannot_be_packed_or_unpacked_is_an_error_that_says_so(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    with pytest.raises(TransportError, match="function cannot be sent|cannot be sent"):
        a.send(b.address, lambda: None)
    sent = a.isend(b.address, Unloadable(), acknowledge=True)
    with pytest.raises(TransportError, match="ValueError: not here"):
        b.recv(a.address)
    with pytest.raises(TransportError, match="not here"):
        sent.wait(10)
    a.send(b.address, "still works")
    assert b.recv(a.address) == "still works"


def test_waits_have_deadlines_that_say_who_waits_for_whom(open_endpoint):
    a, b = open_endpoint("actor:0"), open_endpoint("env:1", window_bytes=1000)
    begun = time.monotonic()
    with pytest.raises(RuntimeTimeout, match="actor:0 to receive from env:1, tag 'x'"):
        a.recv(b.address, "x", timeout=0.2)
    with pytest.raises(RuntimeTimeout):
        a.recv(b.address, "x", timeout=0)
    b.send(a.address, torch.ones(200))
    with pytest.raises(RuntimeTimeout, match="has not taken 1 messages"):
        b.send(a.address, torch.ones(200), timeout=0.2)
    assert time.monotonic() - begun < 3
    a.recv(b.address)
    b.send(a.address, torch.ones(200), timeout=5)


def test_a_cancelled_or_dropped_receive_loses_nothing(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    asked = b.irecv(a.address)
    assert asked.cancel() and not asked.cancel()
    dropped = b.irecv(a.address)
    for number in range(3):
        a.send(b.address, number)
    while not dropped.done():
        time.sleep(0.01)
    del dropped
    gc.collect()
    time.sleep(0.1)
    assert [b.recv(a.address) for _ in range(3)] == [0, 1, 2]


def test_a_peer_that_closes_ends_waits_at_once_but_what_it_sent_can_be_taken(open_endpoint):
    a, b = open_endpoint(), open_endpoint("leaver")
    b.send(a.address, "last words")
    b.send(a.address, torch.ones(100_000), tag="big")
    waiting = a.irecv(b.address, "never")
    time.sleep(0.1)
    b.close()
    with pytest.raises(PeerLostError, match="leaver .*closed"):
        waiting.wait(5)
    assert a.recv(b.address) == "last words"
    assert a.recv(b.address, "big").sum() == 100_000
    with pytest.raises(PeerLostError):
        a.recv(b.address)
    with pytest.raises(PeerLostError):
        a.send(b.address, 1)


def test_somebody_who_knows_of_a_death_ends_the_waits(open_endpoint):
    a, b = open_endpoint(), open_endpoint()
    waiting = a.irecv(b.address)
    a.peer_lost(b.address, "env:1 is frozen")
    with pytest.raises(PeerLostError, match="env:1 is frozen"):
        waiting.wait(5)
    a.disconnect(b.address)
    b.disconnect(a.address)
    b.send(a.address, "again")
    assert a.recv(b.address, timeout=10) == "again"


def test_a_stranger_without_the_secret_gets_nowhere(open_endpoint):
    a, stranger = open_endpoint(), open_endpoint(secret=b"another")
    with pytest.raises(PeerLostError, match="another"):
        stranger.send(a.address, "boo", timeout=5)
    assert not a.hub.connections_of(stranger.hub.uid)
    with pytest.raises(TransportError, match="is no address"):
        a.send("nonsense", 1)


def test_a_hundred_connections_leave_nothing_behind(open_endpoint):
    a = open_endpoint()
    kept, process = [], []
    for _ in range(100):
        b = open_endpoint("visitor")
        b.send(a.address, torch.ones(20_000))
        a.recv(b.address)
        a.send(b.address, 1)
        b.recv(a.address)
        b.close()
        kept.append((len(a.hub._all), len(a._inbox)))
        process.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    # Those that have just closed may still be there; of a leak there would be 75 by then.
    assert all(sorted(late)[25] <= 2 for late in zip(*kept[50:], strict=True)), kept
    # Others in this process, such as the Ray session of other tests, come and go by a few.
    for early, late in zip(zip(*process[5:50], strict=True), zip(*process[50:], strict=True), strict=True):
        assert sorted(late)[25] <= sorted(early)[22] + 5, process
