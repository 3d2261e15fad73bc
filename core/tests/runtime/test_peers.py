"""Workers of any two groups reach each other by group and rank, and learn when the other one is lost."""

import os
import signal
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import torch

from plugrl.errors import PeerLostError, PlugRLError, RuntimeTimeout, UserError, WorkerError
from plugrl.runtime import WorkerGroup, wait_all
from plugrl.runtime.address import WorkerAddress
from plugrl.runtime.directory import Directory

CALLS = "plugrl.testing.call_workers:CallWorker"
WAIT = 30.0


@pytest.fixture(scope="module")
def pair(ray_session):
    left = WorkerGroup(ray_session, CALLS, name="left", devices=[0, 1])
    right = WorkerGroup(ray_session, CALLS, name="right", devices=[0], on_error="return")
    wait_all([left.ready, right.ready], 120)
    yield left, right
    left.close()
    right.close()


def test_messages_of_a_pair_and_tag_come_in_order_whatever_other_pairs_do(pair):
    left, right = pair
    tensors = [torch.arange(6.0).reshape(2, 3).T, {"a": torch.ones((), dtype=torch.bfloat16), "b": None}, "text"]
    sending = left.execute("give", "right", 0, per_rank=[((tensors,), {}), ((list(range(5)),), {})])
    second, first = right.execute("take", "left", 1, 5), right.execute("take", "left", 0, 3)
    (numbers,), ((matrix, tree, text),), _ = wait_all([second, first, sending], WAIT)
    assert numbers == [0, 1, 2, 3, 4] and text == "text" and tree["b"] is None
    assert torch.equal(matrix, tensors[0]) and matrix.is_contiguous()
    assert tree["a"].dtype == torch.bfloat16 and tree["a"].shape == ()


def test_ranks_of_one_group_are_peers_and_in_place_transfers_check_shapes(pair):
    left, _ = pair
    taking = left.ranks(1).execute("take", "left", 0)
    giving = left.ranks(0).execute("give", "left", 1, [{"x": 1}])
    assert wait_all([taking, giving], WAIT)[0] == [[{"x": 1}]]
    taking, giving = left.ranks(1).execute("take_into", "left", 0, (2, 3)), left.ranks(0)
    ((into,), _) = wait_all([taking, giving.execute("give_tensor", "left", 1, (2, 3))], WAIT)
    assert torch.equal(into, torch.ones(2, 3))
    wrong = left.ranks(1).execute("take_into", "left", 0, (3, 2))
    right_shape = left.ranks(0).execute("give_tensor", "left", 1, (2, 3))
    for handle in (wrong, right_shape):
        with pytest.raises(WorkerError, match="TransportError"):
            handle.wait(WAIT)
    taking, giving = left.ranks(1).execute("take", "left", 0), left.ranks(0).execute("give", "left", 1, ["after"])
    assert wait_all([taking, giving], WAIT)[0] == [["after"]]


def test_a_broadcast_reaches_all_listed_workers_from_the_source(pair):
    left, right = pair
    groups = [("left", (0, 1)), ("right", (0,))]
    own = [(("a", groups), {}), (("b", groups), {})]
    values = [left.execute("share", per_rank=own), right.execute("share", "c", groups)]
    assert wait_all(values, WAIT) == [["a", "a"], ["a"]]
    values = [left.execute("share", "x", groups[::-1], ("right", 0)), right.execute("share", "c", groups, ("right", 0))]
    assert wait_all(values, WAIT) == [["c", "c"], ["c"]]
    for wrong, text in (([], "names no worker"), ([("left", (0, 1))], "right:0 is none of left:0, left:1")):
        (error,) = right.execute("share", 1, wrong).wait(WAIT)
        assert isinstance(error.__cause__, PlugRLError)
        assert text in str(error)


def test_a_missing_worker_is_a_deadline_and_a_missing_rank_an_error(pair):
    left, _ = pair
    began = time.monotonic()
    with pytest.raises(WorkerError, match="Nobody has published worker group 'nobody' within 0.3 s") as caught:
        left.ranks(0).execute("take", "nobody", 0, timeout=0.3).wait(WAIT)
    assert isinstance(caught.value.__cause__, RuntimeTimeout) and time.monotonic() - began < 1.3
    with pytest.raises(WorkerError, match="Worker group 'right' has no rank 4: it has 1, from 0"):
        left.ranks(0).execute("take", "right", 4).wait(WAIT)
    with pytest.raises(WorkerError, match="RuntimeTimeout: left:0 to receive from left:1, .* nothing within 0"):
        left.ranks(0).execute("take", "left", 1, timeout=0.3).wait(WAIT)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)], ids=["killed", "stopped"]
)
def test_who_waits_for_a_lost_worker_is_told_and_finds_the_next_one_of_that_name(ray_session, pair, monkeypatch, how):
    _, right = pair
    quick = ray_session.config.model_copy(update={"liveness_timeout_s": 1.0})
    monkeypatch.setattr(ray_session.watch, "_config", quick)
    lost = WorkerGroup(ray_session, CALLS, name="lost", devices=[1], on_error="return").wait_ready(120)
    assert wait_all([right.execute("take", "lost", 0), lost.execute("give", "right", 0, [1])], WAIT)[0] == [[1]]
    waiting = right.execute("take", "lost", 0)
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(lost.known_processes()[0].pid, how)
    (error,) = waiting.wait(WAIT)
    assert time.monotonic() - began < 5.0
    assert isinstance(error.__cause__, PeerLostError)
    assert (error.__cause__.group, error.__cause__.rank) == ("lost", 0)
    lost.close()
    lost = WorkerGroup(ray_session, CALLS, name="lost", devices=[1], on_error="return").wait_ready(120)
    taking, giving = right.execute("take", "lost", 0), lost.execute("give", "right", 0, [2])
    assert wait_all([taking, giving], WAIT)[0] == [[2]]
    lost.close()


def test_names_of_a_run_are_claimed_once_and_looked_up_with_a_deadline(ray_session):
    mine = ray_session.directory
    other = Directory.join(mine.host, mine.port)
    assert mine.find("test/x") is None and other.claim("test/x", {"a": 1}) and not mine.claim("test/x", {"a": 2})
    assert mine.lookup("test/x") == {"a": 1}
    mine.withdraw("test/x")
    with pytest.raises(RuntimeTimeout, match="Nobody has published test/x within 0 s"):
        other.lookup("test/x", 0)
    assert mine.claim("test/x", 3) and other.find("test/x") == 3
    mine.withdraw("test/x")


def test_an_address_is_written_as_group_and_rank():
    address = WorkerAddress.from_name("actor:3")
    assert (address.group, address.rank, str(address)) == ("actor", 3, "actor:3")
    assert address < WorkerAddress("actor", 10)
    for wrong in ("actor", ":1", "actor:x"):
        with pytest.raises(UserError, match="write group:rank"):
            WorkerAddress.from_name(wrong)


@pytest.mark.slow
def test_workers_of_two_groups_take_turns_on_a_device_and_a_killed_one_frees_it(ray_session, pair):
    _, right = pair  # on device 0
    other = WorkerGroup(ray_session, CALLS, name="other", devices=[0], on_error="return").wait_ready(120)
    turns = [turn for (turn,) in wait_all([group.execute("hold_device", 0.3) for group in (right, other)], WAIT)]
    first, second = sorted(turns, key=lambda turn: turn["began"])
    assert first["ended"] <= second["began"], "both were on the device at once"
    (again,) = right.execute("hold_device", 0.0).wait(WAIT)
    assert again["on"] == 1, "the state left though nobody needed it"
    holding = other.execute("hold_device", 300.0)
    time.sleep(1.0)
    waiting = right.execute("hold_device", 0.0)
    began = time.monotonic()
    os.kill(other.known_processes()[0].pid, signal.SIGKILL)
    assert waiting.wait(WAIT)[0]["ended"] and time.monotonic() - began < 10
    (error,) = holding.wait(WAIT)
    assert isinstance(error, PlugRLError)
    other.close()
