"""Optimizer, learning-rate schedule and gradient clipping, the same for every layout.

Norm and clipping work on the local part of each gradient: for sharded gradients that saves one dispatch through DTensor
per parameter, and one all-reduce of a scalar gives the norm over the whole mesh.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

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


def local_gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """This rank's part of every gradient, as plain tensors that share memory with the gradients."""
    gradients = (parameter.grad for parameter in parameters if parameter.grad is not None)
    return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in gradients]


@torch.no_grad()
def global_norm(gradients: list[torch.Tensor], shard_group: dist.ProcessGroup | None, device: torch.device) -> float:
    """2-norm of the whole gradient. ``shard_group``: ranks over which gradients are sharded, None for whole ones."""
    norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=device)
    if shard_group is not None:
        square = norm.float().square()
        dist.all_reduce(square, group=shard_group)
        norm = square.sqrt()
    return float(norm.item())


@torch.no_grad()
def scale_to_norm(gradients: list[torch.Tensor], norm: float, max_norm: float) -> None:
    """Scale ``gradients`` in place so that a total norm of ``norm`` becomes at most ``max_norm``."""
    factor = max_norm / (norm + 1e-6)
    if factor < 1.0 and gradients:
        torch._foreach_mul_(gradients, factor)
