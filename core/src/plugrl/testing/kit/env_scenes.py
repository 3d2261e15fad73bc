"""The kit for environments: resets, steps and ends of a small example that an environment declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from plugrl.envs.base import StepResult, VecEnv
from plugrl.registry import import_target
from plugrl.testing.kit.checks import CheckSkipped, check, expect, expect_equal
from plugrl.testing.kit.context import Context

NUM_ENVS = 3
STEPS = 40
"""Steps in which the episodes of an example should end."""


def examples(kit: Context) -> Iterator[tuple[str, VecEnv, torch.Tensor]]:
    """Yield name, an environment and actions [N, action_dim] for it, of each environment that declares an example.

    The example is a callable ``(num_envs)`` that returns the environment and actions that it accepts.
    """
    entries = [entry for entry in kit.entries("env") if entry.meta.get("example")]
    if not entries:
        raise CheckSkipped("no environment of the plugin declares an example: EnvEntry(example=...)")
    for entry in entries:
        env, actions = import_target(entry.meta["example"])(NUM_ENVS)
        try:
            yield str(entry.key), env, actions
        finally:
            env.close()


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping):
        return set(first) == set(second) and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return bool(first == second)


def check_result(name: str, result: StepResult) -> None:
    """Raise CheckFailed unless a result has a value of the right type for each scene."""
    expect_equal(tuple(result.rewards.shape), (NUM_ENVS,), f"{name}: the shape of rewards")
    expect(result.rewards.is_floating_point(), f"{name}: rewards are no floating numbers", got=result.rewards.dtype)
    for field in ("terminations", "truncations", "success_once", "success_at_end"):
        value = getattr(result, field)
        expect_equal((tuple(value.shape), value.dtype), ((NUM_ENVS,), torch.bool), f"{name}: shape and type of {field}")
    expect(result.final_obs is None or bool(result.dones.any()), f"{name}: final_obs where no episode ended")
    expect(result.final_obs is not None or not bool(result.dones.any()), f"{name}: an end without final_obs")
    for key, value in result.obs.items():
        expect_equal(len(value), NUM_ENVS, f"{name}: scenes in the observation {key}")


@check("env.reset", gate=True)
def reset(kit: Context) -> None:
    """A reset gives an observation per scene; the same seed the same one, another seed another one."""
    for name, env, _ in examples(kit):
        expect_equal(env.num_envs, NUM_ENVS, f"{name}: the number of scenes")
        first, _ = env.reset(seed=5)
        again, _ = env.reset(seed=5)
        expect(_same(first, again), f"{name}: the same seed gives other observations")
        for key, value in first.items():
            expect_equal(len(value), NUM_ENVS, f"{name}: scenes in the observation {key}")


@check("env.step")
def step(kit: Context) -> None:
    """A step gives rewards, ends and successes of every scene; the same seed and actions give the same steps."""
    for name, env, actions in examples(kit):
        runs = []
        for _ in range(2):
            env.reset(seed=7)
            runs.append([env.step(actions) for _ in range(5)])
        for one, two in zip(*runs, strict=True):
            check_result(name, one)
            expect(torch.equal(one.rewards, two.rewards) and _same(one.obs, two.obs),
                   f"{name}: the same seed and actions give other steps")  # fmt: skip


@check("env.ends")
def ends(kit: Context) -> str:
    """Scenes restart by themselves when an episode ends, and the last observation is kept."""
    found = []
    for name, env, actions in examples(kit):
        env.reset(seed=1)
        results = [env.step(actions) for _ in range(STEPS)]
        for result in results:
            check_result(name, result)
        ended = sum(int(result.dones.sum()) for result in results)
        expect(ended, f"{name}: no episode of the example ends within {STEPS} steps")
        found.append(f"{name}: {ended} episodes")
    return ", ".join(found)


@check("env.partial_reset")
def partial_reset(kit: Context) -> None:
    """A reset of some scenes leaves the others where they are."""
    for name, env, actions in examples(kit):
        env.reset(seed=3)
        before = env.step(actions).obs
        after, _ = env.reset(seed=4, indices=[0])
        for key, value in before.items():
            if isinstance(value, torch.Tensor):
                expect(torch.equal(value[1:], after[key][1:]), f"{name}: resetting scene 0 changes {key} of others")


@check("env.chunks")
def chunks(kit: Context) -> None:
    """A chunk of actions is the same as its actions one by one; closing twice is allowed."""
    for name, env, actions in examples(kit):
        env.reset(seed=9)
        single = [env.step(actions) for _ in range(3)]
        env.reset(seed=9)
        chunk = env.chunk_step(torch.stack([actions] * 3, dim=1))
        expect_equal(tuple(chunk.rewards.shape), (NUM_ENVS, 3), f"{name}: the shape of the rewards of a chunk")
        for column, one in enumerate(single):
            expect(torch.equal(one.rewards, chunk.rewards[:, column]),
                   f"{name}: rewards of a chunk differ from those of its steps")  # fmt: skip
        env.close()
        env.close()
