"""`trainer:` and `sft:`: how long to train, what to log, when to save."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from plugrl.config.schema.base import Names, Section
from plugrl.config.schema.optim import OptimConfig


class TrainerConfig(Section):
    """The run as a whole."""

    total_epochs: int = Field(30, ge=1)
    """Passes over the training prompts."""

    total_training_steps: int | None = Field(None, ge=1)
    """Steps in all; null follows from `total_epochs`."""

    project_name: str = "plugrl"
    """Name of the project, for loggers and the output folder."""

    experiment_name: str = "run"
    """Name of this experiment, for loggers and the output folder."""

    default_local_dir: str = ""
    """Folder of the run; empty is `outputs/{project_name}/{experiment_name}`. Made absolute when loaded."""

    logger: Names = ("console", "jsonl")
    """Loggers: console, jsonl, tensorboard, wandb, swanlab, trackio, or what a plugin registers."""

    log_freq: int = Field(1, ge=1)
    """Supervised training: steps between rows of metrics."""

    save_freq: int = Field(-1, ge=-1)
    """Steps between checkpoints; -1 saves none, the last step included. Supervised training always saves its last."""

    test_freq: int = Field(-1, ge=-1)
    """Steps between validations; -1 validates only at the end."""

    val_before_train: bool = True
    """Validate before the first step."""

    resume: str = "auto"
    """`auto` goes on from the last complete checkpoint of this run if there is one, `disable` starts anew and moves an
    earlier run aside, `last` (or true) wants a checkpoint to go on from, `new` (or false) wants a folder without a run,
    a path resumes from that checkpoint."""

    max_ckpt_to_keep: int | None = Field(None, ge=1)
    """Checkpoints kept on disk, the newest; null keeps all. That of `last` and the one resumed from always stay."""

    keep_every: int | None = Field(None, ge=1)
    """Besides them, keep the checkpoints of steps that this divides."""

    critic_warmup: int = Field(0, ge=0)
    """First steps in which only the critic is trained."""

    weight_sync_interval: int = Field(1, ge=1)
    """Environments: steps between two transfers of weights to the rollout."""

    profile_steps: tuple[int, ...] = ()
    """Steps that the platform's profiler records in the actor's workers; empty profiles none."""

    seed: int = 42
    """Seed of sampling and data order."""

    n_gpus_per_node: int | None = Field(None, ge=1)
    """Devices to use on each node; null is all that the placement names."""

    nnodes: int = Field(1, ge=1)
    """Nodes."""

    log_val_generations: int = Field(0, ge=0)
    """Held-out generations to log at each validation."""

    @field_validator("resume", mode="before")
    @classmethod
    def _resume_flag(cls, value: Any) -> Any:
        """Take the flag that trainers elsewhere have."""
        return {True: "last", False: "new"}[value] if isinstance(value, bool) else value


class SftConfig(Section):
    """Supervised training on the reference responses, alone or before reinforcement learning."""

    before_rl: bool = False
    """Run this phase before the reinforcement learning of `plugrl train`."""

    total_steps: int = Field(100, ge=1)
    """Steps at most; each takes one batch, several may make one optimizer update."""

    train_batch_size: int = Field(64, ge=1)
    """Examples in one step of all workers together, where `batch_size` is not given."""

    batch_size: int | None = Field(None, ge=1)
    """Examples in one step of each worker; null shares `train_batch_size` out evenly."""

    gradient_accumulation_steps: int = Field(1, ge=1)
    """Steps whose gradients make one optimizer update."""

    drop_last: bool = False
    """Drop the examples that do not fill the last step of an epoch; otherwise its start fills that step."""

    normalization: dict[str, Literal["mean_std", "min_max", "identity"]] = {}
    """Data sets with statistics: how a feature (`observation.state`), or a kind of features (`state`, `action`,
    `visual`), is normalised. States and actions are by mean and deviation, images are left alone."""

    micro_batch_size_per_gpu: int | None = Field(None, ge=1)
    """Examples in one forward pass of a rank; null takes the whole share of the rank."""

    optim: OptimConfig = OptimConfig(lr=1e-5)
    """Optimizer and schedule."""

    eval_every: int = Field(-1, ge=-1)
    """Steps between validations; -1 validates only at the end."""

    stop_at_accuracy: float | None = Field(None, gt=0, le=1)
    """Stop as soon as a validation reaches this accuracy."""
