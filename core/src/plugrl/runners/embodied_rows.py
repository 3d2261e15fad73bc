"""From what a rollout in environments brought to rows to learn from: masks, advantages, mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugrl.algorithms.embodied import (
    ExplainedVariance,
    bootstrap_rewards,
    estimate,
    filter_rewards,
    permutation,
)
from plugrl.config.schema import RunConfig
from plugrl.workers.embodied.packed import PackedTensors
from plugrl.workers.embodied.trajectory import Trajectory, merge_rows


@dataclass(frozen=True)
class Rows:
    """Rows of a step, one for each chunk in each scene.

    kept: int64 [K], those in which anything counts. metrics: of rewards, advantages and returns.
    """

    tensors: PackedTensors
    kept: Tensor
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def mini_batches(self, size: int, epochs: int, ranks: int, *, seed: int, step: int) -> list[NDArray[np.int64]]:
        """Return the rows of each optimizer step, in another order at every step and pass.

        There are as many optimizer steps whether or not rows were left out, unless too few are left for every rank to
        have one in each; none without any.
        """
        count = min(max(self.total // size, 1), len(self.kept) // ranks)
        if not count:
            return []
        batches: list[NDArray[np.int64]] = []
        for epoch in range(epochs):
            order = self.kept[permutation(len(self.kept), seed=seed, step=step, epoch=epoch)].numpy()
            batches += np.array_split(order, count)
        return batches


def make_rows(trajectory: Trajectory, config: RunConfig) -> Rows:
    """Return the rows of a trajectory with their advantages; statistics are over all scenes.

    Raises:
        UserError: the estimator cannot do with what there is, such as one value for a chunk of actions.
    """
    train, algorithm = config.env.train, config.algorithm
    assert train is not None, "the configuration was checked"
    chunks, scenes, width = trajectory.rewards.shape
    mask = trajectory.executed & trajectory.valid.unsqueeze(-1)
    whole = None if train.auto_reset else trajectory.valid.all(0)
    rewards = _with_last_values(trajectory, config) if train.auto_reset else trajectory.rewards
    counted, filtered = mask, 0.0
    if algorithm.filter_groups.enable:
        counted = filter_rewards(
            trajectory.rewards,
            mask,
            group_size=train.group_size,
            lower=-np.inf if algorithm.rewards_lower_bound is None else algorithm.rewards_lower_bound,
            upper=np.inf if algorithm.rewards_upper_bound is None else algorithm.rewards_upper_bound,
            valid=whole,
        )
        filtered = 1.0 - float(counted.any(-1).any(0).float().mean())
    found = estimate(
        algorithm.adv_estimator,
        rewards,
        trajectory.dones,
        values=trajectory.prev_values,
        loss_mask=counted,
        reward_type=algorithm.reward_type,
        group_size=train.group_size,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        normalize_advantages=algorithm.normalize_advantages,
        valid=whole,
        **algorithm.options,
    )
    advantages = found.advantages
    learned = counted.any(-1, keepdim=True) if advantages.shape[-1] == 1 and width > 1 else counted
    sums = mask.sum((0, 2)).float().reshape(1, scenes, 1).expand(learned.shape)
    tensors = dict(trajectory.forward_inputs) | {
        "prev_logprobs": trajectory.prev_logprobs,
        "advantages": advantages,
        "response_mask": learned,
        "mask_sums": sums,
    }
    metrics = _summary("advantages", advantages, learned) | {"rollout/rewards": _mean(trajectory.rewards, mask)}
    if algorithm.filter_groups.enable:
        metrics["rollout/filtered_scenes"] = filtered
    if trajectory.prev_values is not None and found.returns is not None:
        values = trajectory.prev_values[:-1].expand(found.returns.shape)
        tensors |= {"prev_values": values, "returns": found.returns}
        metrics |= _summary("returns", found.returns, learned)
        explained = ExplainedVariance.of(found.returns, values, learned).value
        if np.isfinite(explained):
            metrics["critic/vf_explained_var"] = explained
    rows = {name: merge_rows(tensor) for name, tensor in tensors.items()}
    kept = merge_rows(learned).any(-1).nonzero().flatten()
    return Rows(PackedTensors.pack(rows), kept, chunks * scenes, metrics)


def _with_last_values(trajectory: Trajectory, config: RunConfig) -> Tensor:
    """Add the values of last states to the rewards of the actions with which episodes ended."""
    if trajectory.bootstrap_values is None:
        return trajectory.rewards
    shape = trajectory.rewards.shape
    added = bootstrap_rewards(
        trajectory.rewards.flatten(0, 1),
        trajectory.bootstrap_values.flatten(),
        dones=trajectory.dones[1:].flatten(0, 1),
        truncations=trajectory.truncations[1:].flatten(0, 1),
        gamma=config.algorithm.gamma,
        kind=config.algorithm.bootstrap_type,
    )
    return added.reshape(shape)


def _summary(name: str, values: Tensor, mask: Tensor) -> dict[str, float]:
    """Return mean, largest and smallest valid entry; nothing without one."""
    chosen = values[mask]
    if not chosen.numel():
        return {}
    return {
        f"rollout/{name}_mean": float(chosen.mean()),
        f"rollout/{name}_max": float(chosen.max()),
        f"rollout/{name}_min": float(chosen.min()),
    }


def _mean(values: Tensor, mask: Tensor) -> float:
    return float(values[mask].mean()) if bool(torch.any(mask)) else 0.0
