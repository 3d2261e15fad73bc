"""The arithmetic of a run: how many steps, samples and optimizer steps a configuration means."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Counts that follow from rows, batch sizes and devices."""

    steps_per_epoch: int
    total_steps: int
    rollouts_per_step: int
    samples_per_mini_batch: int
    optimizer_steps_per_step: int
    samples_per_device_per_step: int


def plan_run(
    *,
    num_rows: int,
    train_batch_size: int,
    ppo_mini_batch_size: int,
    n: int = 1,
    devices: int = 1,
    ppo_epochs: int = 1,
    total_epochs: int = 1,
    total_training_steps: int | None = None,
) -> RunPlan:
    """Compute the counts of a run.

    Args:
        num_rows: prompts in the training data.
        train_batch_size: prompts in one step.
        ppo_mini_batch_size: prompts in one optimizer step.
        n: responses to each prompt.
        devices: data-parallel ranks of the actor.
        ppo_epochs: passes over each batch.
        total_epochs: passes over the data; ``total_training_steps`` overrides what follows from it.

    Raises:
        ConfigError: sizes that do not divide or fit each other; the key is named.
    """
    if num_rows < train_batch_size:
        raise ConfigError(f"data.train_batch_size: {train_batch_size} is more than the {num_rows} training prompts.")
    if train_batch_size % ppo_mini_batch_size:
        raise ConfigError(
            f"actor.ppo_mini_batch_size: {ppo_mini_batch_size} does not divide "
            f"data.train_batch_size, {train_batch_size}."
        )
    if ppo_mini_batch_size * n % devices:
        raise ConfigError(
            f"actor.ppo_mini_batch_size: {ppo_mini_batch_size} x {n} (rollout.n) samples cannot be shared evenly by "
            f"{devices} ranks."
        )
    steps_per_epoch = num_rows // train_batch_size
    return RunPlan(
        steps_per_epoch=steps_per_epoch,
        total_steps=steps_per_epoch * total_epochs if total_training_steps is None else total_training_steps,
        rollouts_per_step=train_batch_size * n,
        samples_per_mini_batch=ppo_mini_batch_size * n,
        optimizer_steps_per_step=train_batch_size // ppo_mini_batch_size * ppo_epochs,
        samples_per_device_per_step=train_batch_size * n // devices,
    )
