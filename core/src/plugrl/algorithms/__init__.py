"""Pure tensor functions of reinforcement learning: advantages, losses, divergences, aggregation, schedules.

Importing this package is light; a name is imported with its module, and so with torch, on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugrl.algorithms.registry import (
    advantages,
    check_options,
    get_advantage,
    get_policy_loss,
    losses,
    register_advantage,
    register_policy_loss,
)
from plugrl.algorithms.schedule import lr_factor, resolve_warmup_steps

if TYPE_CHECKING:
    from plugrl.algorithms.aggregation import aggregate
    from plugrl.algorithms.controllers import AdaptiveKLController, FixedKLController, make_kl_controller
    from plugrl.algorithms.divergence import kl, kl_penalty_in_reward
    from plugrl.algorithms.formulas import token_loss
    from plugrl.algorithms.masking import masked_mean, masked_sum, masked_var, place_rewards, whiten
    from plugrl.algorithms.objective import actor_objective
    from plugrl.algorithms.overlong import overlong_penalty
    from plugrl.algorithms.policy_losses import policy_loss
    from plugrl.algorithms.value_losses import value_loss

_MODULES = {
    "AdaptiveKLController": "controllers",
    "FixedKLController": "controllers",
    "actor_objective": "objective",
    "aggregate": "aggregation",
    "kl": "divergence",
    "kl_penalty_in_reward": "divergence",
    "make_kl_controller": "controllers",
    "masked_mean": "masking",
    "masked_sum": "masking",
    "masked_var": "masking",
    "overlong_penalty": "overlong",
    "place_rewards": "masking",
    "policy_loss": "policy_losses",
    "token_loss": "formulas",
    "value_loss": "value_losses",
    "whiten": "masking",
}

__all__ = [
    "AdaptiveKLController",
    "FixedKLController",
    "actor_objective",
    "advantages",
    "aggregate",
    "check_options",
    "get_advantage",
    "get_policy_loss",
    "kl",
    "kl_penalty_in_reward",
    "losses",
    "lr_factor",
    "make_kl_controller",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "overlong_penalty",
    "place_rewards",
    "policy_loss",
    "register_advantage",
    "register_policy_loss",
    "resolve_warmup_steps",
    "token_loss",
    "value_loss",
    "whiten",
]


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the exported names, imported or not."""
    return sorted(__all__)
