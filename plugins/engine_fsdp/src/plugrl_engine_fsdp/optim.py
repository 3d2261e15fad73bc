"""Optimizer and learning-rate schedule, the same for every layout."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from plugrl.algorithms.schedule import lr_factor, resolve_warmup_steps
from plugrl.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What the section ``optim`` says, with verl's defaults. ``total_training_steps`` counts calls of the schedule."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_grad: float = 1.0
    lr_warmup_steps: int = -1
    lr_warmup_steps_ratio: float = 0.0
    lr_scheduler_type: str = "constant"
    min_lr_ratio: float = 0.0
    num_cycles: float = 0.5
    total_training_steps: int = -1

    @classmethod
    def from_config(cls, config: Any) -> OptimizerSettings:
        """Read the known keys of a mapping or of an object with attributes; an absent key takes its default."""
        if isinstance(config, cls):
            return config
        read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
        given = {field.name: read(field.name) for field in fields(cls)}
        settings = cls(**{key: value for key, value in given.items() if value is not None})
        if not settings.clip_grad > 0:
            raise ConfigError(f"optim.clip_grad: {settings.clip_grad} is not a positive norm")
        return settings

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up: ``lr_warmup_steps`` when positive, else the ratio of all steps."""
        total = max(self.total_training_steps, 0)
        return resolve_warmup_steps(self.lr_warmup_steps, self.lr_warmup_steps_ratio, total)


def build_optimizer(parameters: Iterable[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """AdamW over all trainable ``parameters`` in one group; the fused kernel where the device has one."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    options: dict[str, Any] = {
        "lr": settings.lr,
        "betas": tuple(settings.betas),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }
    try:
        return torch.optim.AdamW(trainable, fused=True, **options)
    except RuntimeError:
        _log.info("this device has no fused AdamW; the plain one is used")
        return torch.optim.AdamW(trainable, **options)


class Schedule:
    """Sets the learning rate of every group to its base rate times ``lr_factor`` at the current step."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: OptimizerSettings):
        needs_total = settings.lr_scheduler_type != "constant" or (
            settings.lr_warmup_steps <= 0 and settings.lr_warmup_steps_ratio > 0
        )
        if needs_total and settings.total_training_steps <= 0:
            raise ConfigError(
                f"optim.total_training_steps: the {settings.lr_scheduler_type!r} schedule or a warm-up by ratio needs "
                "the number of training steps"
            )
        self._optimizer = optimizer
        self._settings = settings
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self.steps = 0
        self._apply()

    def _apply(self) -> None:
        settings = self._settings
        factor = lr_factor(
            self.steps,
            total=settings.total_training_steps,
            warmup=settings.warmup_steps,
            kind=settings.lr_scheduler_type,
            min_lr_ratio=settings.min_lr_ratio,
            num_cycles=settings.num_cycles,
        )
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor

    @property
    def lr(self) -> float:
        """The learning rate that the next optimizer step uses."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self) -> float:
        """Advance by one and return the new learning rate."""
        self.steps += 1
        self._apply()
        return self.lr

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the step, and for comparison the base rates and the horizon."""
        total = self._settings.total_training_steps
        return {"steps": self.steps, "base_lrs": self._base, "total_training_steps": total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the stored step. Base rates and horizon stay those of this run's configuration."""
        ours = self.state_dict()
        for key in ("base_lrs", "total_training_steps"):
            if key in state and state[key] != ours[key]:
                _log.warning("resume: %s is %s in the checkpoint, this run goes on with %s", key, state[key], ours[key])
        self.steps = int(state["steps"])
        self._apply()
