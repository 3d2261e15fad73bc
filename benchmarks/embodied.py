"""Environment steps a second against raw Meta-World and raw gymnasium.vector, side by side.

A step is one action carried out in one scene, restarts of ended episodes included. Each pair does the same work on the
same number of scenes: Meta-World's own classes in a loop, gymnasium's SyncVectorEnv and AsyncVectorEnv (one process for
each scene), and the same simulator through PlugRL, in the process and in two simulator processes, in chunks of 1 and 8
actions. Contenders take turns, and each counts with its best turn; shown are steps a second of wall time and of
processor time, all processes together. Actions are random and the same for all. Meta-World takes a millisecond a step;
Pendulum and CartPole take microseconds, so that everything else shows: there chunks of one action, in which a call and
its tensors weigh as much as the simulator, are shown and not judged.

Exits with 1 when PlugRL is more than 10 % slower than what it stands beside, by wall time, or by processor time where
there is one process alone.

    python benchmarks/embodied.py [--seconds 4] [--turns 40] [--scenes 16]
        [--only metaworld pendulum cartpole] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from plugrl.envs import VecEnv, make_env
from plugrl.plugins import load_plugins

LEAST = 0.9
TICKS = os.sysconf("SC_CLK_TCK")


class Contender:
    """Something that steps scenes.

    Args:
        make: returns what is stepped.
        advance: steps it once, or by a chunk, and takes the number of the call.
        chunk: actions for each scene in a call.
    """

    def __init__(self, name: str, make: Callable[[], Any], advance: Callable[[Any, int], None], chunk: int) -> None:
        self.name, self.chunk = name, chunk
        self._advance = advance
        before = set(children())
        self._env = make()
        self._pids = sorted(set(children()) - before)
        self.calls = 0
        self.wall = self.cpu = float("inf")

    def turn(self, calls: int) -> float:
        """Step ``calls`` times and keep the least time for each scene's step; return the wall time."""
        wall, cpu = time.perf_counter(), self._cpu()
        for _ in range(calls):
            self._advance(self._env, self.calls)
            self.calls += 1
        wall, cpu = time.perf_counter() - wall, self._cpu() - cpu
        self.wall = min(self.wall, wall / calls / self.chunk)
        self.cpu = min(self.cpu, cpu / calls / self.chunk)
        return wall

    def close(self) -> None:
        """Release it."""
        for env in self._env if isinstance(self._env, list) else [self._env]:
            env.close()

    def _cpu(self) -> float:
        return time.process_time() + sum(cpu_of(pid) for pid in self._pids)


def children() -> list[int]:
    """Return the processes that this one has started."""
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True)
class Row:
    """One comparison: steps a second of all scenes."""

    simulator: str
    ours: str
    other: str
    wall_ours: float
    wall_other: float
    cpu_ours: float
    cpu_other: float
    alone: bool
    """Whether both are one process."""
    is_judged: bool

    @property
    def is_met(self) -> bool:
        """Whether ours is at most 10 % slower, or is only shown."""
        by_wall = self.wall_ours >= LEAST * self.wall_other
        return not self.is_judged or by_wall or (self.alone and self.cpu_ours >= LEAST * self.cpu_other)

    @property
    def verdict(self) -> str:
        """What the table says of it."""
        return ("met" if self.is_met else "MISSED") if self.is_judged else "shown"


# --------------------------------------------------------------------- contenders
def through_plugrl(name: str, settings: dict[str, Any], actions: torch.Tensor, chunk: int, processes: int) -> Contender:
    """Return the environment ``name``; actions are [calls, N, chunk, D]."""

    def make() -> VecEnv:
        env = make_env(name, {**settings, "num_envs": actions.shape[1], "processes": processes})
        env.reset(seed=0)
        return env

    where = f"{processes} processes" if processes else "in the process"
    return Contender(f"PlugRL {where}, chunks of {chunk}", make,
                     lambda env, call: env.chunk_step(actions[call % len(actions), :, :chunk]), chunk)  # fmt: skip


def vector(kind: Any, build: Callable[[], Any], actions: Any, scenes: int) -> Contender:
    """Return a vector environment of gymnasium."""

    def make() -> Any:
        env = kind([build] * scenes, autoreset_mode=AutoresetMode.SAME_STEP)
        env.reset(seed=0)
        return env

    return Contender(kind.__name__, make, lambda env, call: env.step(actions[call % len(actions)]), 1)


def published_metaworld() -> Any:
    """Return reach as Meta-World publishes it, with its positions drawn anew for each episode."""
    from metaworld.env_dict import ENV_CLS_MAP

    env = ENV_CLS_MAP["reach-v3"]()
    env._set_task_called, env._freeze_rand_vec, env._partially_observable = True, False, False
    vars(env).pop("sawyer_observation_space", None)
    return env


def loop(actions: Any, scenes: int) -> Contender:
    """Return Meta-World's environments in a plain loop."""

    def make() -> list[Any]:
        envs = [published_metaworld() for _ in range(scenes)]
        for env in envs:
            env.reset()
        return envs

    def advance(envs: list[Any], call: int) -> None:
        for env, action in zip(envs, actions[call % len(actions)], strict=True):
            *_, truncated, _ = env.step(action)
            if truncated:
                env.reset()

    return Contender("Meta-World in a loop", make, advance, 1)


# --------------------------------------------------------------------- the comparison
def race(simulator: str, ours: list[Contender], others: list[Contender], alone: bool, scenes: int, turns: int,
         seconds: float, judge_single: bool = True) -> list[Row]:  # fmt: skip
    """Let contenders take turns and return each of ours beside each of the others.

    Without ``judge_single`` chunks of one action are only shown.
    """
    runners = [*ours, *others]
    for one in runners:
        one.turn(3)
    steps = max(int(seconds / turns / max(one.wall for one in runners)) // 8, 1) * 8  # the same for all
    for _ in range(turns):
        for one in runners:
            one.turn(steps // one.chunk)
    rows = [
        Row(simulator, one.name, other.name, scenes / one.wall, scenes / other.wall, scenes / one.cpu,
            scenes / other.cpu, alone, judge_single or one.chunk > 1)
        for one in ours for other in others
    ]  # fmt: skip
    for one in runners:
        one.close()
    return rows


def metaworld(scenes: int, turns: int, seconds: float) -> list[Row]:
    """Compare on reach, states only."""
    actions = (np.random.default_rng(0).random((64, scenes, 8, 4)) * 2 - 1).astype(np.float32)
    single, settings = actions[:, :, 0], {"tasks": ["reach"]}
    ours = partial(through_plugrl, "metaworld", settings, torch.from_numpy(actions))
    here = race("Meta-World", [ours(chunk=1, processes=0), ours(chunk=8, processes=0)],
                [loop(single, scenes), vector(SyncVectorEnv, published_metaworld, single, scenes)], True, scenes, turns,
                seconds)  # fmt: skip
    there = race("Meta-World", [ours(chunk=1, processes=2), ours(chunk=8, processes=2)],
                 [vector(AsyncVectorEnv, published_metaworld, single, scenes)], False, scenes, turns,
                 seconds)  # fmt: skip
    return here + there


def classic(name: str, actions: Any, scenes: int, turns: int, seconds: float) -> list[Row]:
    """Compare on a simulator that takes microseconds, so that everything else shows; actions are [calls, N, 8, D]."""
    single = actions[:, :, 0, 0] if actions.dtype.kind == "i" else actions[:, :, 0]
    build = partial(gymnasium.make, name)
    ours = partial(through_plugrl, "gymnasium", {"id": name}, torch.from_numpy(actions.astype(np.float32)))
    here = race(name, [ours(chunk=1, processes=0), ours(chunk=8, processes=0)],
                [vector(SyncVectorEnv, build, single, scenes)], True, scenes, turns, seconds, False)  # fmt: skip
    there = race(name, [ours(chunk=1, processes=2), ours(chunk=8, processes=2)],
                 [vector(AsyncVectorEnv, build, single, scenes)], False, scenes, turns, seconds, False)  # fmt: skip
    return here + there


def cartpole(scenes: int, turns: int, seconds: float) -> list[Row]:
    """Discrete actions; episodes of about twenty steps, so that every other call restarts a scene."""
    return classic("CartPole-v1", np.random.default_rng(0).integers(0, 2, (64, scenes, 8, 1)), scenes, turns, seconds)


def pendulum(scenes: int, turns: int, seconds: float) -> list[Row]:
    """Continuous actions; episodes of 200 steps."""
    actions = (np.random.default_rng(0).random((64, scenes, 8, 1)) * 4 - 2).astype(np.float32)
    return classic("Pendulum-v1", actions, scenes, turns, seconds)


SIMULATORS = {"metaworld": metaworld, "pendulum": pendulum, "cartpole": cartpole}


def main() -> int:
    """Print the table; return 1 when PlugRL is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each contender, all turns together")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--scenes", type=int, default=16)
    parser.add_argument("--only", nargs="+", choices=SIMULATORS, default=list(SIMULATORS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load_plugins()
    rows = [row for name in options.only for row in SIMULATORS[name](options.scenes, options.turns, options.seconds)]
    print(f"steps a second of {options.scenes} scenes, the best of {options.turns} turns")
    print("| simulator | PlugRL | beside | wall: PlugRL | other | ratio | processor: PlugRL | other | ratio | |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---|")
    for row in rows:
        print(f"| {row.simulator} | {row.ours} | {row.other} | {row.wall_ours:,.0f} | {row.wall_other:,.0f} "
              f"| {row.wall_ours / row.wall_other:.2f} | {row.cpu_ours:,.0f} | {row.cpu_other:,.0f} "
              f"| {row.cpu_ours / row.cpu_other:.2f} | {row.verdict} |")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
