"""Advantages, masks and losses of policies that act in environments.

Layouts: a rollout holds n chunks of C actions in B scenes. Rewards are [n, B, C]; flags and values [n + 1, B, C], one
more than there are chunks: a flag tells whether the episode ended *before* what stands at the same place, the last
value is that of the state after the last chunk. Estimators see steps in the order of time, [S, B] with S = n C. The
scenes of a group stand next to each other.

Importing this package is light; a name is imported with its module, and so with torch, on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugrl.algorithms.embodied.registry import (
    check_embodied_options,
    embodied_key,
    get_embodied_advantage,
    get_embodied_loss,
    register_embodied_advantage,
    register_embodied_loss,
)

if TYPE_CHECKING:
    from plugrl.algorithms.embodied.averaging import Averaging
    from plugrl.algorithms.embodied.chunks import flatten_chunks, flatten_flags, merge_epochs, unflatten_steps
    from plugrl.algorithms.embodied.estimate import Estimate, estimate
    from plugrl.algorithms.embodied.levels import at_level, check_log_probs
    from plugrl.algorithms.embodied.masks import filter_rewards, loss_mask
    from plugrl.algorithms.embodied.moments import ExplainedVariance, Moments, standardise
    from plugrl.algorithms.embodied.objective import embodied_objective
    from plugrl.algorithms.embodied.rewards import bootstrap_rewards, episode_scores, mix_rewards
    from plugrl.algorithms.embodied.shuffling import permutation

_MODULES = {
    "Averaging": "averaging",
    "Estimate": "estimate",
    "ExplainedVariance": "moments",
    "Moments": "moments",
    "at_level": "levels",
    "bootstrap_rewards": "rewards",
    "check_log_probs": "levels",
    "embodied_objective": "objective",
    "episode_scores": "rewards",
    "estimate": "estimate",
    "filter_rewards": "masks",
    "flatten_chunks": "chunks",
    "flatten_flags": "chunks",
    "loss_mask": "masks",
    "merge_epochs": "chunks",
    "mix_rewards": "rewards",
    "permutation": "shuffling",
    "standardise": "moments",
    "unflatten_steps": "chunks",
}

__all__ = [
    "Averaging",
    "Estimate",
    "ExplainedVariance",
    "Moments",
    "at_level",
    "bootstrap_rewards",
    "check_embodied_options",
    "check_log_probs",
    "embodied_key",
    "embodied_objective",
    "episode_scores",
    "estimate",
    "filter_rewards",
    "flatten_chunks",
    "flatten_flags",
    "get_embodied_advantage",
    "get_embodied_loss",
    "loss_mask",
    "merge_epochs",
    "mix_rewards",
    "permutation",
    "register_embodied_advantage",
    "register_embodied_loss",
    "standardise",
    "unflatten_steps",
]


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # `estimate` is the function, not the module that the import left under this name
    return value


def __dir__() -> list[str]:
    """List the exported names, imported or not."""
    return sorted(__all__)
