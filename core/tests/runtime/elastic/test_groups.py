"""Groups of real processes that are scaled: what they hold goes along, and whoever is killed when, nothing is lost."""

import os
import signal
import time

import pytest

pytest.importorskip("ray")

from plugrl.errors import PeerLostError, PlugRLError, ScaleError, WorkerDied
from plugrl.runtime import WorkerGroup, process
from plugrl.runtime.elastic import Scaling, StateScaling, scale_group

LENGTH = 11
WAIT_S = 120.0


def expected(steps: int) -> list[float]:
    vector = [float(i) for i in range(LENGTH)]
    for step in range(1, steps + 1):
        vector = [value * 1.5 + step for value in vector]
    return vector


def step(group: WorkerGroup) -> tuple[set[tuple[int, int]], list[float]]:
    answers = group.execute("step").wait(WAIT_S)
    return {(generation, steps) for generation, steps, _ in answers}, [x for _, _, part in answers for x in part]


@pytest.fixture
def start(ray_session):
    def start(name: str, ranks: int) -> WorkerGroup:
        worker = "plugrl.testing.state_workers:VectorWorker"
        return WorkerGroup(ray_session, worker, name=name, devices=range(ranks), args=(LENGTH,)).wait_ready(WAIT_S)

    yield start
    for group in ray_session.open_groups():
        group.close(graceful=False)


def killing(session, at: str, side: str):
    """A fault that kills the last rank of the old or the new generation when a step is reached."""

    def fault(point: str) -> None:
        if point == f"scale.{at}":
            first, *others = (group for group in session.open_groups() if group.name == "vector")
            newest = max([first, *others], key=lambda group: group.generation)
            oldest = min([first, *others], key=lambda group: group.generation)
            os.kill(max((newest if side == "new" else oldest).known_processes().items())[1].pid, signal.SIGKILL)

    return fault


def test_work_goes_on_beside_the_start_and_the_state_goes_along(ray_session, start):
    """So does what has come to the state after the new ranks made room for it."""
    group = start("vector", 1)
    first, old = group.generation, [(info.pid, info.started) for info in group.known_processes().values()]
    found = []
    scaling = Scaling(StateScaling(group, lambda old: old.successor((0, 1, 2)), found.append), timeout=WAIT_S)
    scaling.begin()
    assert step(group) == ({(first, 1)}, expected(1)), "the old group does not work while the new one starts"
    with pytest.raises(PlugRLError, match="is being replaced already"):
        group.successor((0,))
    while not scaling.is_created:
        time.sleep(0.02)
    assert step(group) == ({(first, 2)}, expected(2))
    report = scaling.finish()
    assert report.stall_s < report.seconds["create"]
    (new,) = found
    assert ray_session.open_groups() == [new] and ray_session.group("vector") is new and new.size == 3
    assert WorkerGroup.attach(ray_session, "vector") is new
    assert [x for part in new.execute("before").wait(WAIT_S) for x in part] == expected(1)
    assert step(new) == ({(first + 1, 3)}, expected(3))
    assert not process.wait_gone(old, 5.0), "an old process is still there"
    assert ray_session.directory.find("group/vector") == {"generation": first + 1, "size": 3}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["setup", "want_state", "receive_state", "take_over_state"])
def test_the_first_new_rank_that_raises_ends_the_attempt_though_all_others_wait(ray_session, start, method):
    group = start("vector", 2)
    step(group)
    scaling = Scaling(
        StateScaling(group, lambda old: old.successor((0, 1), args=(LENGTH, method)), lambda new: None), timeout=WAIT_S
    )
    scaling.begin()
    while not scaling.is_created:
        time.sleep(0.02)
    began = time.monotonic()
    with pytest.raises(ScaleError, match="nothing has changed: .* rank 1 .* OSError: no room") as caught:
        scaling.finish()
    assert time.monotonic() - began < 15.0, "the error waited for the deadline"
    assert caught.value.step == ("create" if method in ("setup", "want_state") else "transfer")
    assert ray_session.open_groups() == [group]
    assert step(group) == ({(group.generation, 2)}, expected(2)), "the attempt has changed the state"
    new, _ = scale_group(group, (0,), timeout=WAIT_S, moves_state=True)
    assert step(new)[1] == expected(3), "an attempt after the one that failed does not work"


@pytest.mark.slow
def test_a_new_rank_that_is_killed_is_rolled_back_and_an_old_one_after_the_commit_is_nobodys_loss(ray_session, start):
    group = start("vector", 2)
    step(group)
    began = time.monotonic()
    with pytest.raises(ScaleError, match="nothing has changed") as caught:
        scale_group(group, (0,), timeout=WAIT_S, moves_state=True, fault=killing(ray_session, "transfer", "new"))
    assert caught.value.rolled_back and caught.value.step == "transfer"
    assert isinstance(caught.value.cause, WorkerDied | PeerLostError), caught.value.cause
    assert time.monotonic() - began < WAIT_S and ray_session.open_groups() == [group]
    assert step(group) == ({(group.generation, 2)}, expected(2)), "the attempt has changed the state"
    fault = killing(ray_session, "resume", "old")
    new, _ = scale_group(group, (0,), timeout=WAIT_S, moves_state=True, fault=fault)
    assert step(new) == ({(group.generation + 2, 3)}, expected(3))
    assert ray_session.open_groups() == [new]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("at", ["create", "quiesce", "transfer", "commit", "resume", "destroy"])
def test_whoever_is_killed_at_whatever_step(ray_session, start, at, side):
    """Before the commit the old generation decides, after it the new one; both end in a typed error or go on."""
    if (at, side) == ("create", "new"):
        pytest.skip("there is no new rank before the first step")
    group = start("vector", 2)
    step(group)
    fault = killing(ray_session, at, side)
    before = at in ("create", "quiesce", "transfer")
    if before:
        with pytest.raises(ScaleError) as caught:
            scale_group(group, (0, 1, 2), timeout=WAIT_S, moves_state=True, fault=fault)
        assert caught.value.rolled_back and ray_session.open_groups() == [group]
        survivor = group
    else:
        survivor, _ = scale_group(group, (0, 1, 2), timeout=WAIT_S, moves_state=True, fault=fault)
        assert ray_session.open_groups() == [survivor]
    if (side == "old") == before:
        with pytest.raises(WorkerDied, match="vector"):
            step(survivor)
    else:
        assert step(survivor)[1] == expected(2)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["create", "quiesce", "transfer", "commit"])
def test_every_fault_before_the_commit_rolls_back(ray_session, start, point):
    def fault(at: str) -> None:
        if at == f"scale.{point}":
            raise OSError("no room")

    group = start("vector", 1)
    step(group)
    with pytest.raises(ScaleError, match=f"step {point}, nothing has changed: OSError: no room"):
        scale_group(group, (0, 1), timeout=WAIT_S, moves_state=True, fault=fault)
    assert ray_session.open_groups() == [group] and step(group)[1] == expected(2)


@pytest.mark.slow
def test_a_stopped_new_rank_is_noticed_in_seconds(ray_session, start):
    group = start("vector", 1)

    def fault(point: str) -> None:
        if point == "scale.transfer":
            os.kill(ray_session.open_groups()[-1].known_processes()[0].pid, signal.SIGSTOP)

    began = time.monotonic()
    with pytest.raises(ScaleError):
        scale_group(group, (0, 1), timeout=WAIT_S, moves_state=True, fault=fault)
    assert time.monotonic() - began < WAIT_S / 2
    assert step(group)[1] == expected(1)
