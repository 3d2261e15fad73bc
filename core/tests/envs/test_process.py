"""Simulators in processes of their own: the same results, and what becomes of scenes whose simulator fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from plugrl.envs import EnvParams  # noqa: E402
from plugrl.envs.episodes import next_seed  # noqa: E402
from plugrl.envs.process import ProcessEnv  # noqa: E402
from plugrl.envs.process.env import shares  # noqa: E402
from plugrl.envs.process.group import told  # noqa: E402
from plugrl.errors import PlugRLError, SimulatorFailed, UserError  # noqa: E402
from plugrl.testing.corridor import EXIT, HANG, KILL, RAISE, STOP, Corridor, FaultyCorridor, corridor  # noqa: E402

FIELDS = ("rewards", "executed", "terminations", "truncations", "success_once", "success_at_end", "lost")
SCENES, PROCESSES = 5, 2


def isolated(num_envs: int = SCENES, processes: int = PROCESSES, **settings: object) -> ProcessEnv:
    params = EnvParams.model_validate({"num_envs": num_envs, "processes": processes, **settings})
    return ProcessEnv(FaultyCorridor, params)


@pytest.fixture(scope="module")
def env() -> Iterator[ProcessEnv]:
    made = isolated()
    yield made
    made.close()


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends in time; a zombie that nobody has waited for has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def assert_same(one: object, two: object, rows: slice = slice(None)) -> None:
    for name in FIELDS:
        assert torch.equal(getattr(one, name)[rows], getattr(two, name)[rows]), name
    assert torch.equal(one.obs["states"][rows], two.obs["states"][rows])
    assert (one.final_obs is None) == (two.final_obs is None)
    if one.final_obs is not None:
        assert torch.equal(one.final_obs["states"][rows], two.final_obs["states"][rows])


# --------------------------------------------------------------------- without faults
def test_processes_give_what_one_process_gives(env: ProcessEnv) -> None:
    plain = corridor(SCENES)
    assert (env.num_envs, env.action_dim, env.max_episode_steps) == (SCENES, 1, 12)
    first, _ = env.reset(seed=3)
    assert torch.equal(first["states"], plain.reset(seed=3)[0]["states"])
    source, episodes, kept = torch.Generator().manual_seed(0), 0, first["states"].clone()
    for chunk in (3, 3, 1, 4, 4, 4):
        actions = torch.rand(SCENES, chunk, 1, generator=source) * 1.2
        one, two = env.chunk_step(actions), plain.chunk_step(actions)
        assert_same(one, two)
        assert one.episodes == two.episodes and env.seeds == plain.seeds
        episodes += len(one.episodes)
    assert episodes > SCENES
    assert torch.equal(first["states"], kept), "what was returned is not written into again"
    one, two = env.reset(indices=[1, 4]), plain.reset(indices=[1, 4])
    assert torch.equal(one[0]["states"], two[0]["states"]) and one[1]["seeds"] == two[1]["seeds"]
    assert one[0]["task_descriptions"] == two[0]["task_descriptions"]
    wanted = (3.5 - plain.position) / 2
    assert env.expert_actions()[:, 0].tolist() == pytest.approx(wanted.tolist())
    assert env.render(4).tolist() == torch.full((4, 6, 3), int(plain.position[4] * 10)).tolist()


def test_scenes_are_spread_evenly() -> None:
    assert shares(5, 2) == [3, 2] and shares(2, 4) == [1, 1] and shares(6, 3) == [2, 2, 2]


# --------------------------------------------------------------------- faults
def test_a_lost_simulator_drops_its_episodes_and_no_row_of_the_others_moves(env: ProcessEnv) -> None:
    plain = corridor(SCENES)
    env.reset(seed=[1, 2, 3, 4, 5])
    plain.reset(seed=[1, 2, 3, 4, 5])
    calm = torch.full((SCENES, 2, 1), 0.25)
    assert_same(env.chunk_step(calm), plain.chunk_step(calm))
    deadly = calm.clone()
    deadly[1, 1] = KILL  # the second action of a scene in the first process, which has moved by then
    result = env.chunk_step(deadly)
    assert_same(result, plain.chunk_step(calm), rows=slice(3, None))
    assert result.lost.tolist() == [True, True, True, False, False]
    assert not result.executed[:3].any() and not result.rewards[:3].any() and not result.dones.any()
    assert [record.index for record in result.episodes] == [0, 1, 2]
    assert all(item.dropped and item.length == 2 and item.return_ == 0.5 for item in result.episodes), result.episodes
    assert [record.seed for record in result.episodes] == [1, 2, 3]
    assert env.seeds == (next_seed(1), next_seed(2), next_seed(3), 4, 5)
    fresh, _ = corridor(3).reset(seed=[next_seed(seed) for seed in (1, 2, 3)])
    assert torch.equal(result.obs["states"][:3], fresh["states"])
    again = env.chunk_step(calm)
    assert again.executed.all() and not again.lost.any() and again.episodes == ()
    assert torch.allclose(again.obs["states"][:3], fresh["states"] + 0.5)


def test_a_question_that_fails_is_reported_lost_by_the_next_chunk(env: ProcessEnv) -> None:
    env.reset(seed=20)
    os.kill(env.pids[1], signal.SIGKILL)
    assert env.expert_actions()[3:].tolist() == [[0.0], [0.0]] and not env.render(3).any()
    result = env.chunk_step(torch.full((SCENES, 1, 1), 0.25))
    assert result.lost.tolist() == [False, False, False, True, True]
    assert result.executed[:, 0].tolist() == [True, True, True, False, False]


def test_a_simulator_that_raises_hangs_or_exits_stops_the_run_after_failures_in_a_row_with_each_cause() -> None:
    env = isolated(2, 1, step_timeout_s=2.5, max_failures=3)
    pid = env.pids[0]
    env.reset(seed=0)
    calm = torch.full((2, 1, 1), 0.25)
    assert env.chunk_step(calm + RAISE).lost.all()
    assert gone(pid)
    assert env.chunk_step(calm + HANG).lost.all()
    pid = env.pids[0]
    with pytest.raises(SimulatorFailed, match="Simulator 0 failed 3 times in a row") as failed:
        env.chunk_step(calm + EXIT)
    raised, hung, left = failed.value.causes
    assert "raised ArithmeticError: the joint is unstable" in raised and "in _raise" in raised
    assert "did not answer within 2.5 s" in hung and "a chunk of 1 actions" in hung and "in _hang" in hung
    assert "exit code 3" in left and "the simulator gives up" in left
    assert all(text in str(failed.value) for text in failed.value.causes), "all different, so all are shown"
    assert "in serve" not in raised and "RuntimeWarning" not in left, "nothing of our own"
    assert gone(pid)
    with pytest.raises(PlugRLError, match="closed"):
        env.chunk_step(calm)
    env.close()


def test_failures_that_are_alike_are_told_in_a_line_each() -> None:
    assert told(["A (pid 1) raised\nthere", "A (pid 2) raised\nthere", "A (pid 3) ended"]) == (
        "1. A (pid 1) raised\n2. A (pid 2) raised\nthere\n3. A (pid 3) ended"
    )


@pytest.mark.slow
def test_a_chunk_that_succeeds_ends_the_row_of_failures() -> None:
    env = isolated(1, 1, max_failures=2)
    env.reset(seed=0)
    for action in (RAISE, 0, RAISE, 0, KILL, 0):
        assert env.chunk_step(torch.full((1, 1, 1), action + 0.25)).lost.tolist() == [action != 0]
    env.close()


@pytest.mark.slow
def test_a_simulator_that_is_stopped_or_fails_at_resets_is_started_again() -> None:
    with_faults = isolated(3, 1, step_timeout_s=2.0)
    with_faults.reset(seed=[KILL, 1, 2])
    assert with_faults.seeds == (next_seed(KILL), next_seed(1), next_seed(2))
    with_faults.chunk_step(torch.full((3, 1, 1), 0.25))
    _, info = with_faults.reset(seed=[KILL], indices=[0])
    assert info["lost"] == (1, 2), "episodes that were not meant are dropped too, and counted"
    result = with_faults.chunk_step(torch.full((3, 1, 1), 0.25))
    assert [record.index for record in result.episodes] == [1, 2] and result.executed.all()
    pid = with_faults.pids[0]
    assert with_faults.chunk_step(torch.full((3, 1, 1), STOP + 0.1)).lost.all() and gone(pid)
    with_faults.close()


@pytest.mark.slow
def test_a_scene_that_waits_for_a_reset_goes_on_waiting_when_its_simulator_was_lost() -> None:
    env = isolated(2, 1, auto_reset=False)
    env.reset(seed=0)
    env.chunk_step(torch.tensor([[[5.0]], [[0.1]]]))
    os.kill(env.pids[0], signal.SIGKILL)
    lost = env.chunk_step(torch.full((2, 1, 1), 0.25))
    assert lost.lost.tolist() == [False, True] and [record.index for record in lost.episodes] == [1]
    assert env.chunk_step(torch.full((2, 1, 1), 0.25)).executed[:, 0].tolist() == [False, True]
    env.close()


# --------------------------------------------------------------------- what cannot be built, and ends
def test_what_another_process_cannot_import_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Corridor):
        """A class in a function."""

    with pytest.raises(UserError, match="Local.*at the top of an importable module"):
        ProcessEnv(Local, EnvParams(processes=1))
    module = ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    module.Lost = type("Lost", (Corridor,), {"__module__": "only_here"})  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="No module named 'only_here'.*top of an importable module"):
        ProcessEnv(module.Lost, EnvParams(processes=1))


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    script = (
        "import sys, time; from plugrl.testing.corridor import FaultyCorridor as F, HANG\n"
        "from plugrl.envs.process import ProcessEnv; from plugrl.envs.config import EnvParams\n"
        "import numpy, types\n"
        "env = ProcessEnv(F, EnvParams(num_envs=2, processes=2)); groups = env._groups\n"
        "for group in groups: group.begin_reset({0: 1}); group.finish_reset()\n"
        "groups[0].begin_chunk(numpy.full((1, 1, 1), HANG, dtype=numpy.float32))\n"
        "print(*env.pids, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and not gone(pids[0], 0.1)
        os.kill(pids[1], signal.SIGSTOP)
        parent.kill()
        parent.wait()
    assert [pid for pid in pids if not gone(pid)] == [], "a simulator that hangs and one that is stopped end too"


def test_closing_ends_every_process_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    env = isolated(2, 1)
    pids = env.pids
    env.reset(seed=0)
    env.chunk_step(torch.zeros(2, 1, 1))
    env.close()
    env.close()
    assert all(gone(pid) for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == before
