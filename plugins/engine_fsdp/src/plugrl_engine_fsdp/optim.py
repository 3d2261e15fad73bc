"""Optimizer and learning-rate schedule, the same for every layout."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from plugrl.algorithms.schedule import lr_factor, resolve_warmup_steps
from plugrl.errors import ConfigError, nearest
from plugrl_engine_fsdp.fp32_master import build_adamw
from plugrl_engine_fsdp.names import clean_name, parameter_names

if TYPE_CHECKING:
    from plugrl_engine_fsdp.layouts import Layout

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What the section ``optim`` says, with verl's defaults. ``total_training_steps`` counts calls of the schedule."""

    lr: float = 1e-6
    value_lr: float | None = None
    lr_multipliers: Mapping[str, float] = field(default_factory=dict)
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
    use_fp32_master_params: bool = False
    fp32_master_any_layout: bool = False

    @classmethod
    def from_config(cls, config: Any) -> OptimizerSettings:
        """Read the known keys of a mapping or of an object with attributes; an absent key takes its default."""
        if isinstance(config, cls):
            return config
        read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
        given = {item.name: read(item.name) for item in fields(cls)}
        settings = cls(**{key: value for key, value in given.items() if value is not None})
        if not settings.clip_grad >= 0:
            raise ConfigError(f"optim.clip_grad: {settings.clip_grad} is no norm; 0 clips nothing")
        return settings

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up: ``lr_warmup_steps`` when positive, else the ratio of all steps."""
        total = max(self.total_training_steps, 0)
        return resolve_warmup_steps(self.lr_warmup_steps, self.lr_warmup_steps_ratio, total)


def parameter_groups(
    policy: Any, settings: OptimizerSettings, critic: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Group the policy's trainable parameters by their learning rate; those of the rate ``lr`` come first.

    ``value_lr`` is the rate of ``critic``, names of the policy before it was wrapped; None asks its
    ``critic_parameters()``. ``lr_multipliers`` go by published name. Raises ConfigError for a multiplier that fits no
    trainable parameter, and for rates that differ within one flat parameter.
    """
    critic = frozenset(policy.critic_parameters() if critic is None else critic)
    if settings.value_lr is not None and not critic:
        _log.warning("optim.value_lr: %s has no value head; the rate is not used", type(policy).__name__)
    published = parameter_names(policy)
    # A fused kernel takes no mixture of sharded and whole parameters, which ignored modules make.
    groups: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    unused = set(settings.lr_multipliers)
    known: list[str] = []
    named = ((clean_name(name), parameter) for name, parameter in policy.named_parameters())
    trainable = {name: parameter for name, parameter in named if parameter.requires_grad}
    for name, parameter in trainable.items():
        rates: dict[float, str] = {}
        for own, shown in _held(policy, name, parameter, published[id(parameter)]):
            rate = settings.value_lr if own in critic and settings.value_lr is not None else settings.lr
            fitting = [part for part in settings.lr_multipliers if part in shown]
            unused.difference_update(fitting)
            known.append(shown)
            rates.setdefault(rate * settings.lr_multipliers[max(fitting, key=len)] if fitting else rate, shown)
        if len(rates) > 1:
            listed = ", ".join(f"{shown} {rate:g}" for rate, shown in rates.items())
            raise ConfigError(
                f"optim.value_lr, lr_multipliers: one flat parameter has one rate, and these lie in one: {listed}. "
                "Set fsdp_config.use_orig_params=true"
            )
        groups.setdefault((next(iter(rates)), isinstance(parameter, DTensor)), []).append(parameter)
    if unused:
        part = min(unused)
        hint = nearest(part, known)
        raise ConfigError(
            f"optim.lr_multipliers: no trainable parameter has {part!r} in its name"
            + (f"; the nearest is {hint}" if hint else "")
        )
    ordered = sorted(groups.items(), key=lambda item: item[0][0] != settings.lr)
    return [{"params": parameters, "lr": rate} for (rate, _), parameters in ordered]


def _held(policy: Any, name: str, parameter: torch.nn.Parameter, published: str) -> list[tuple[str, str]]:
    """Own and published names of what a parameter stands for: itself, or those that FSDP1 made one flat one of."""
    flattened = getattr(parameter, "_fqns", None)
    if flattened is None:
        return [(name, published)]
    prefix = name.rpartition(".")[0]
    names = [clean_name(f"{prefix}.{inner}" if prefix else inner) for inner in flattened]
    return [(own, policy.published_name(own) or own) for own in names]


def check_fp32_masters(settings: OptimizerSettings, layout: Layout) -> None:
    """Raise ConfigError when fp32 masters are asked for under a layout that is not meant for them."""
    if settings.use_fp32_master_params and not (layout.takes_fp32_masters or settings.fp32_master_any_layout):
        raise ConfigError(
            "optim.use_fp32_master_params: valid with strategy fsdp and fsdp_config.sharding_strategy no_shard, and "
            f"this run's layout is {layout.name}. Set optim.fp32_master_any_layout=true to use it all the same"
        )


def build_optimizer(parameters: Iterable[Any], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """AdamW over trainable parameters or over groups of them; the fused kernel where the device has one."""
    found = list(parameters)
    if not found or not isinstance(found[0], dict):
        found = [parameter for parameter in found if parameter.requires_grad]
    options: dict[str, Any] = {
        "lr": settings.lr,
        "betas": tuple(settings.betas),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }
    if settings.use_fp32_master_params:
        return build_adamw(found, use_fp32_master_params=True, **options)
    try:
        return build_adamw(found, fused=True, **options)
    except RuntimeError:
        _log.info("this device has no fused AdamW; the plain one is used")
        return build_adamw(found, **options)


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
