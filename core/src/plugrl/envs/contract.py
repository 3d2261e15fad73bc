"""The rules that every result of an environment keeps, checked; the conformance kit has those that take several calls.

Whoever receives results from environments that others wrote can call :func:`check_chunk` on each: it costs microseconds
and says which rule is broken before wrong numbers are trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from plugrl.envs.base import ChunkResult
from plugrl.errors import EnvContractError

IMAGES = {"main_images": 4, "wrist_images": 4, "extra_view_images": 5}
"""Fields of pictures -> their number of dimensions."""


def check_chunk(result: ChunkResult, num_envs: int, chunk: int, where: str = "The environment") -> None:
    """Raise EnvContractError naming the first rule that a result of ``chunk`` actions in ``num_envs`` scenes breaks."""
    for broken in broken_rules(result, num_envs, chunk):
        raise EnvContractError(f"{where} breaks its contract: {broken}.")


def check_observations(fields: Mapping[str, Any], num_envs: int, where: str = "The environment") -> None:
    """Raise EnvContractError naming the first rule that observations of ``num_envs`` scenes break."""
    for broken in broken_observations("obs", fields, num_envs):
        raise EnvContractError(f"{where} breaks its contract: {broken}.")


def broken_rules(result: ChunkResult, num_envs: int, chunk: int) -> Iterator[str]:
    """Yield what is wrong with a result, each as a phrase."""
    wrong = list(_wrong_types(result, num_envs, chunk))
    yield from wrong or _wrong_values(result)
    yield from broken_observations("obs", result.obs, num_envs)
    if result.final_obs is not None:
        yield from broken_observations("final_obs", result.final_obs, num_envs)
        if set(result.final_obs) != set(result.obs):
            yield f"final_obs has the fields {sorted(result.final_obs)}, obs {sorted(result.obs)}"


def _wrong_types(result: ChunkResult, num_envs: int, chunk: int) -> Iterator[str]:
    pairs, row = (num_envs, chunk), (num_envs,)
    flags, rows = ("executed", "terminations", "truncations"), ("success_once", "success_at_end", "lost")
    wanted = {"rewards": (pairs, torch.float32), **dict.fromkeys(flags, (pairs, torch.bool)),
              **dict.fromkeys(rows, (row, torch.bool))}  # fmt: skip
    for name, (shape, dtype) in wanted.items():
        value = getattr(result, name)
        if not isinstance(value, torch.Tensor) or (tuple(value.shape), value.dtype) != (shape, dtype):
            found = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            yield f"{name} must be {dtype} {list(shape)}, not {found}"


def _wrong_values(result: ChunkResult) -> Iterator[str]:
    dones, executed = result.dones, result.executed
    if bool((result.terminations & result.truncations).any()):
        yield "an action both terminates and truncates its episode: what the task ends is not cut off"
    if bool((dones & ~executed).any()):
        yield "an episode ends with an action that was not executed"
    if bool((executed[:, 1:] & ~executed[:, :-1]).any()):
        yield "actions are executed again after one of the chunk was not"
    if bool((executed[:, 1:] & dones[:, :-1]).any()):
        yield "an action after the end of an episode is executed within the same chunk"
    if bool((result.rewards[~executed] != 0).any()):
        yield "an action that was not executed has a reward"
    if not bool(torch.isfinite(result.rewards).all()):
        yield "a reward is not finite"
    if bool((result.success_at_end & ~result.success_once).any()):
        yield "a scene is solved at the end but not once"
    if (result.final_obs is not None) != bool(dones.any()):
        yield "final_obs must be there when an episode ended, and None when none did"
    if bool((executed & result.lost[:, None]).any()):
        yield "a scene whose simulator was lost has executed actions"
    yield from _wrong_records(result)


def _wrong_records(result: ChunkResult) -> Iterator[str]:
    ended = sorted(result.dones.any(dim=1).nonzero().flatten().tolist())
    finished = [item for item in result.episodes if not item.dropped]
    if sorted(item.index for item in finished) != ended:
        yield f"episodes lists the scenes {sorted(item.index for item in finished)}, those that ended are {ended}"
        return
    for item in finished:
        told = (bool(result.success_once[item.index]), bool(result.success_at_end[item.index]))
        if (item.success_once, item.success_at_end) != told:
            yield f"the record of scene {item.index} and success_once, success_at_end differ"
        if item.terminated != bool(result.terminations[item.index].any()):
            yield f"the record of scene {item.index} says otherwise than terminations whether the task ended it"
    dropped = {item.index for item in result.episodes if item.dropped}
    lost = set(result.lost.nonzero().flatten().tolist())
    if not lost <= dropped:
        yield f"the scenes {sorted(lost - dropped)} are lost without a dropped record"


def broken_observations(name: str, fields: Mapping[str, Any], num_envs: int) -> Iterator[str]:
    """Yield what is wrong with observations, each as a phrase."""
    if not fields:
        yield f"{name} has no field"
    for field, value in fields.items():
        if len(value) != num_envs:
            yield f"{name}.{field} has {len(value)} rows for {num_envs} scenes"
        elif isinstance(value, torch.Tensor):
            yield from _wrong_tensor(f"{name}.{field}", field, value)
        elif not isinstance(value, list):
            yield f"{name}.{field} is a {type(value).__name__}; it must be a tensor or a list"
        elif field == "task_descriptions" and not all(isinstance(item, str) for item in value):
            yield f"{name}.{field} must hold texts"


def _wrong_tensor(name: str, field: str, value: torch.Tensor) -> Iterator[str]:
    if value.device.type != "cpu":
        yield f"{name} lies on {value.device}, it must lie on the host"
    if field in IMAGES and (value.dtype != torch.uint8 or value.ndim != IMAGES[field] or value.shape[-1] != 3):
        views = "V, " if IMAGES[field] == 5 else ""
        yield f"{name} must be uint8 [N, {views}H, W, 3], not {value.dtype} {_shape(value)}"
    if field == "states":
        if value.dtype != torch.float32 or value.ndim != 2:
            yield f"{name} must be float32 [N, S], not {value.dtype} {_shape(value)}"
        elif not bool(torch.isfinite(value).all()):
            yield f"{name} holds a number that is not finite"


def _shape(value: torch.Tensor) -> list[int]:
    return list(value.shape)
