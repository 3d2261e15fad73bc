"""The kit for environments: resets, steps and ends of a small example that an environment declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.envs.contract import broken_observations, broken_rules
from plugrl.envs.episodes import next_seed
from plugrl.errors import MissingDependency, PlugRLError, UnsupportedCapability
from plugrl.registry import import_target
from plugrl.testing.kit.checks import CheckSkipped, check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import Context

NUM_ENVS = 3
STEPS = 40
"""Steps in which the episodes of an example should end."""

FLAGS = ("executed", "rewards", "terminations", "truncations")


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


def same(first: Any, second: Any) -> bool:
    """Whether two observations, or parts of them, are equal to the last bit."""
    if isinstance(first, Mapping):
        return set(first) == set(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return bool(first == second)


def rows(fields: Mapping[str, Any], chosen: list[int]) -> dict[str, Any]:
    """Return the observations of some scenes."""
    return {key: value[chosen] if isinstance(value, torch.Tensor) else [value[index] for index in chosen]
            for key, value in fields.items()}  # fmt: skip


def stepped(name: str, env: VecEnv, actions: torch.Tensor, chunk: int = 1) -> ChunkResult:
    """Repeat the actions for a chunk and return the result. Raises CheckFailed naming a rule that it breaks."""
    result = env.chunk_step(actions[:, None].repeat(1, chunk, 1))
    for broken in broken_rules(result, NUM_ENVS, chunk):
        expect(False, f"{name}: {broken}")
    return result


def until_an_end(name: str, env: VecEnv, actions: torch.Tensor) -> tuple[int, ChunkResult]:
    """Step until an episode ends; return the number of steps and the result. Raises CheckFailed when none does."""
    for count in range(1, STEPS + 1):
        result = stepped(name, env, actions)
        if bool(result.dones.any()):
            return count, result
    expect(False, f"{name}: no episode of the example ends within {STEPS} steps")
    raise AssertionError


# --------------------------------------------------------------------- resets
@check("env.reset", gate=True)
def reset(kit: Context) -> None:
    """A reset gives observations of the right types for every scene, and the seeds of their episodes."""
    for name, env, actions in examples(kit):
        expect_equal(env.num_envs, NUM_ENVS, f"{name}: the number of scenes")
        expect_equal(env.action_dim, actions.shape[1], f"{name}: action_dim")
        limit = env.max_episode_steps
        expect(limit is None or limit > 0, f"{name}: max_episode_steps is neither None nor above 0", got=limit)
        obs, info = env.reset(seed=5)
        for broken in broken_observations("obs", obs, NUM_ENVS):
            expect(False, f"{name}: {broken}")
        expect_equal(env.seeds, (5, 6, 7), f"{name}: one seed spread over the scenes (seed + index)")
        expect_equal(tuple(info.get("seeds", ())), env.seeds, f"{name}: info['seeds'] of a reset")
        env.reset(seed=[9, 3, 9])
        expect_equal(env.seeds, (9, 3, 9), f"{name}: the seeds of a reset with one for each scene")


@check("env.seed")
def seed(kit: Context) -> None:
    """The seed decides the episode: again, in another scene, after other episodes; another seed gives another one."""
    for name, env, actions in examples(kit):
        first, _ = env.reset(seed=[11, 12, 13])
        steps = [stepped(name, env, actions[:1].repeat(NUM_ENVS, 1)) for _ in range(3)]
        for _ in range(STEPS):
            stepped(name, env, actions)
        again, _ = env.reset(seed=[12, 11, 11])
        swapped = [1, 0, 0]
        expect(same(again, rows(first, swapped)), f"{name}: the same seed gives another first observation")
        for before in steps:
            after = stepped(name, env, actions[:1].repeat(NUM_ENVS, 1))
            alike = torch.equal(after.rewards, before.rewards[swapped]) and same(after.obs, rows(before.obs, swapped))
            expect(alike, f"{name}: the same seed and actions give other steps")
        expect(not same(rows(first, [0]), rows(first, [1])) or not same(rows(first, [0]), rows(first, [2])),
               f"{name}: other seeds give the same episode")  # fmt: skip


@check("env.partial_reset")
def partial_reset(kit: Context) -> None:
    """A reset of some scenes leaves the others, and their episodes, where they are."""
    for name, env, actions in examples(kit):
        runs = []
        for partly in (False, True):
            env.reset(seed=3)
            before = stepped(name, env, actions).obs
            if partly:
                after, _ = env.reset(seed=[4], indices=[0])
                expect(same(rows(before, [1, 2]), rows(after, [1, 2])), f"{name}: resetting scene 0 changes others")
                expect_equal(env.seeds, (4, 4, 5), f"{name}: the seeds after a reset of scene 0")
            runs.append(stepped(name, env, actions))
        expect(same(rows(runs[0].obs, [1, 2]), rows(runs[1].obs, [1, 2])),
               f"{name}: after a reset of scene 0 the others go on otherwise")  # fmt: skip


# --------------------------------------------------------------------- steps
@check("env.chunks")
def chunks(kit: Context) -> None:
    """A chunk of actions is the same as its actions one by one, up to the end of an episode."""
    for name, env, actions in examples(kit):
        env.reset(seed=9)
        singles = [stepped(name, env, actions) for _ in range(3)]
        env.reset(seed=9)
        chunk = stepped(name, env, actions, chunk=3)
        for column, one in enumerate(singles):
            counted = chunk.executed[:, column]
            for field in FLAGS[1:]:
                alike = torch.equal(getattr(one, field)[counted, 0], getattr(chunk, field)[counted, column])
                expect(alike, f"{name}: {field} of a chunk differ from those of its steps")
        single = env.reset(seed=9) and env.step(actions)
        expect_equal(tuple(single.rewards.shape), (NUM_ENVS,), f"{name}: the shape of the rewards of step()")
        expect(torch.equal(single.rewards, singles[0].rewards[:, 0]), f"{name}: step() is no chunk of one action")


@check("env.independent")
def independent(kit: Context) -> None:
    """What one scene does changes nothing in the others."""
    for name, env, actions in examples(kit):
        env.reset(seed=6)
        before = [stepped(name, env, actions) for _ in range(8)]
        env.reset(seed=6)
        other = torch.cat([actions[1:2], actions[1:]])
        after = [stepped(name, env, other) for _ in range(8)]
        for one, two in zip(before, after, strict=True):
            alike = torch.equal(one.rewards[1:], two.rewards[1:]) and same(rows(one.obs, [1, 2]), rows(two.obs, [1, 2]))
            expect(alike, f"{name}: another action in scene 0 changes the others")


@check("env.kept")
def kept(kit: Context) -> None:
    """What was returned belongs to its receiver: later calls do not write into it."""
    for name, env, actions in examples(kit):
        obs, _ = env.reset(seed=2)
        results = [stepped(name, env, actions) for _ in range(2)] + [until_an_end(name, env, actions)[1]]
        tensors = [*obs.values()]
        for result in results:
            tensors += [*result.obs.values(), *(result.final_obs or {}).values()]
            tensors += [getattr(result, field) for field in (*FLAGS, "success_once", "success_at_end", "lost")]
        found = [item for item in tensors if isinstance(item, torch.Tensor)]
        copies = [item.clone() for item in found]
        for _ in range(STEPS):
            stepped(name, env, actions)
        env.reset(seed=1)
        expect(all(map(torch.equal, found, copies)), f"{name}: a later call writes into tensors returned before")


@check("env.actions")
def wrong_actions(kit: Context) -> None:
    """Actions of another width, and for another number of scenes, are refused with a readable error."""
    for name, env, actions in examples(kit):
        env.reset(seed=0)
        wide = torch.zeros(NUM_ENVS, 1, actions.shape[1] + 1)
        expect_raises(PlugRLError, partial(env.chunk_step, wide), f"{name}: an action too wide")
        more = torch.zeros(NUM_ENVS + 1, 1, actions.shape[1])
        expect_raises(PlugRLError, partial(env.chunk_step, more), f"{name}: a row too many")


# --------------------------------------------------------------------- ends
@check("env.ends")
def ends(kit: Context) -> str:
    """Where an episode ends the scene restarts, exactly once and alone, and its last observation is kept."""
    found = []
    for name, env, actions in examples(kit):
        env.reset(seed=1)
        before = env.seeds
        count, result = until_an_end(name, env, actions)
        ended = result.dones.any(dim=1)
        wanted = tuple(next_seed(old) if done else old for old, done in zip(before, ended.tolist(), strict=True))
        expect_equal(env.seeds, wanted, f"{name}: the seeds after an end (each scene that ended restarts exactly once)")
        over, others = ended.nonzero().flatten().tolist(), (~ended).nonzero().flatten().tolist()
        assert result.final_obs is not None
        expect(same(rows(result.final_obs, others), rows(result.obs, others)),
               f"{name}: final_obs of scenes that go on is not their observation")  # fmt: skip
        expect(not same(rows(result.final_obs, over), rows(result.obs, over)),
               f"{name}: final_obs of a scene that ended is the first observation of its next episode")  # fmt: skip
        fresh, _ = env.reset(seed=list(env.seeds))
        expect(same(rows(fresh, over), rows(result.obs, over)),
               f"{name}: obs of a scene that restarted is not the first observation of its episode")  # fmt: skip
        env.reset(seed=1)
        chunk = stepped(name, env, actions, chunk=count + 3)
        expect(bool(chunk.dones[ended, count - 1].all()), f"{name}: the flag of an end is not in the column of the end")
        expect(same(rows(chunk.obs, over), rows(result.obs, over)),
               f"{name}: after a chunk in which a scene ended it does not begin its next episode")  # fmt: skip
        found.append(f"{name}: after {count} steps")
    return ", ".join(found)


@check("env.episodes")
def episodes(kit: Context) -> str:
    """Records sum up their episodes: length, return, seed, success; none is longer than max_episode_steps."""
    found = []
    for name, env, actions in examples(kit):
        env.reset(seed=8)
        lengths, sums, seeds, once = [0] * NUM_ENVS, [0.0] * NUM_ENVS, list(env.seeds), [False] * NUM_ENVS
        count = 0
        for _ in range(STEPS):
            result = stepped(name, env, actions)
            for index in range(NUM_ENVS):
                lengths[index] += int(result.executed[index, 0])
                sums[index] += float(result.rewards[index, 0])
                expect(not once[index] or bool(result.success_once[index]), f"{name}: success_once is forgotten")
                once[index] = bool(result.success_once[index])
            for record in result.episodes:
                told = (record.length, record.seed, record.success_once)
                index = record.index
                expect_equal(told, (lengths[index], seeds[index], once[index]),
                             f"{name}: length, seed and success_once of a record")  # fmt: skip
                expect(abs(record.return_ - sums[index]) < 1e-3 * max(1.0, abs(sums[index])),
                       f"{name}: the return of a record", got=record.return_, expected=sums[index])  # fmt: skip
                limit = env.max_episode_steps
                expect(limit is None or record.length <= limit, f"{name}: an episode is longer than max_episode_steps")
                expect(record.terminated or limit is None or record.length == limit,
                       f"{name}: an episode is truncated before max_episode_steps", got=record.length)  # fmt: skip
                lengths[index], sums[index], once[index] = 0, 0.0, False
                seeds[index] = env.seeds[index]
                count += 1
        expect(count, f"{name}: no episode of the example ends within {STEPS} steps")
        found.append(f"{name}: {count} episodes")
    return ", ".join(found)


# --------------------------------------------------------------------- besides
@check("env.optional")
def optional(kit: Context) -> str:
    """Experts and pictures are of the right shape, or refused as unsupported."""
    found = []
    for name, env, actions in examples(kit):
        env.reset(seed=0)
        try:
            expert = env.expert_actions()
            told = (tuple(expert.shape), expert.dtype, bool(torch.isfinite(expert).all()))
            expect_equal(told, (tuple(actions.shape), torch.float32, True), f"{name}: expert_actions")
            found.append(f"{name}: expert")
        except UnsupportedCapability:
            pass
        try:
            picture = env.render(NUM_ENVS - 1)
            seen = (picture.dtype, picture.ndim, picture.shape[-1])
            expect_equal(seen, (torch.uint8, 3, 3), f"{name}: type, dimensions and channels of a picture")
            found.append(f"{name}: pictures")
        except (UnsupportedCapability, MissingDependency):
            pass
    return ", ".join(found)


@check("env.close")
def close(kit: Context) -> None:
    """Closing twice is allowed, before and after use."""
    for _, env, actions in examples(kit):
        env.reset(seed=0)
        env.step(actions)
        env.close()
        env.close()
