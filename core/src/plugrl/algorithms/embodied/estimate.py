"""From what a rollout brought to advantages: the whole way for every estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from plugrl.algorithms.embodied.chunks import flatten_chunks, flatten_flags, flatten_values, unflatten_steps
from plugrl.algorithms.embodied.registry import get_embodied_advantage
from plugrl.algorithms.masking import as_mask, full_precision
from plugrl.errors import UserError

RewardType = Literal["action_level", "chunk_level"]


@dataclass(frozen=True)
class Estimate:
    """Advantages, and returns where the estimator has some: [n, B, C], with chunk-level rewards [n, B, 1]."""

    advantages: Tensor
    returns: Tensor | None


def estimate(
    name: str,
    rewards: Tensor,
    dones: Tensor,
    *,
    values: Tensor | None = None,
    loss_mask: Tensor | None = None,
    reward_type: RewardType = "action_level",
    **options: Any,
) -> Estimate:
    """Return the advantages of a rollout of n chunks of C actions in B scenes.

    All scenes of all ranks belong in one call: statistics run over what is given.

    Args:
        name: a registered estimator, such as ``gae``.
        rewards: [n, B, C].
        dones: bool [n + 1, B, C], the first entry before the first chunk.
        values: [n + 1, B, C], with chunk-level rewards [n + 1, B, 1].
        loss_mask: bool [n, B, C] or [n, B, 1], the actions that count.
        reward_type: ``chunk_level`` takes a chunk as one step: its rewards are summed, an end in it is its end.
        options: ``group_size``, ``gamma``, ``lam``, ``valid`` [B], ``normalize_advantages``, ``normalize_returns``,
            and the estimator's own.

    Raises:
        UserError: (a ValueError) an unknown estimator or option, shapes that do not fit, ``gae`` without values.
    """
    estimator = get_embodied_advantage(name)
    if reward_type not in ("action_level", "chunk_level"):
        raise UserError(f'algorithm.reward_type: no "{reward_type}". Known: action_level, chunk_level.')
    _check(rewards, dones, values, loss_mask)
    if values is None and name.lower().removeprefix("embodied/") == "gae":
        raise UserError("gae needs values of the states: set actor.model.add_value_head, or take another estimator.")
    ends = as_mask(dones)
    if reward_type == "chunk_level":
        rewards, ends = full_precision(rewards).sum(-1, keepdim=True), ends.any(-1, keepdim=True)
        loss_mask = None if loss_mask is None else as_mask(loss_mask).any(-1, keepdim=True)
    width = rewards.shape[2]
    if values is not None and values.shape[2] != width:
        raise UserError(
            f"values: {values.shape[2]} for each chunk, but {reward_type} rewards need {width}. "
            "Set algorithm.reward_type to chunk_level for a policy with one value a chunk."
        )
    mask = None if loss_mask is None else flatten_chunks(as_mask(loss_mask).expand(rewards.shape))
    advantages, returns = estimator(
        flatten_chunks(rewards),
        mask,
        dones=flatten_flags(ends),
        values=None if values is None else flatten_values(values),
        **options,
    )
    if advantages.shape != (rewards.shape[0] * width, rewards.shape[1]):
        return Estimate(advantages, returns)  # an estimator with a layout of its own, such as one value a token
    return Estimate(
        unflatten_steps(advantages, width),
        None if returns is None else unflatten_steps(returns, width),
    )


def _check(rewards: Tensor, dones: Tensor, values: Tensor | None, loss_mask: Tensor | None) -> None:
    if rewards.dim() != 3:
        raise UserError(f"rewards are [chunks, scenes, actions], not {list(rewards.shape)}.")
    chunks, scenes, width = rewards.shape
    expected: dict[str, tuple[Tensor | None, tuple[tuple[int, ...], ...]]] = {
        "dones": (dones, ((chunks + 1, scenes, width),)),
        "values": (values, ((chunks + 1, scenes, width), (chunks + 1, scenes, 1))),
        "loss_mask": (loss_mask, ((chunks, scenes, width), (chunks, scenes, 1))),
    }
    for name, (tensor, shapes) in expected.items():
        if tensor is not None and tuple(tensor.shape) not in shapes:
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            raise UserError(
                f"{name} has shape {list(tensor.shape)}, expected {allowed} beside rewards {list(rewards.shape)}."
            )
