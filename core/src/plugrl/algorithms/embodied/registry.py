"""Names of estimators and losses that work on steps in an environment; light: no torch until something is looked up.

They stand in the registries of :mod:`plugrl.algorithms.registry` under keys that begin with ``embodied/``, since what
they take is something else than tokens; a configuration names them without. Case does not matter. An estimator is

    ``fn(rewards [S, B], mask [S, B] or None, *, <keywords it uses>) -> (advantages [S, B], returns [S, B] or None)``

over steps in the order of time, and a policy loss

    ``fn(log_probs, old_log_probs, advantages, mask or None, *, mean, <keywords it uses>) -> (loss 0-d, metrics)``

where ``log_probs`` and ``old_log_probs`` have the level of ``logprob_type`` and ``mean(values, mask)`` is the average
over the valid entries of the *whole* batch: a loss that uses it does not depend on the micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from plugrl.algorithms.registry import (
    EMBODIED,
    F,
    advantages,
    declared_keywords,
    losses,
    select_keywords,
    tolerant,
)

if TYPE_CHECKING:
    from torch import Tensor

    Estimator = Callable[..., tuple[Tensor, Tensor | None]]
    Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]

ADVANTAGE_KEYWORDS = frozenset(
    {"dones", "values", "group_size", "valid", "gamma", "lam", "normalize_advantages", "normalize_returns"}
)
"""Keywords that every estimator may be given."""

LOSS_KEYWORDS = frozenset(
    {
        "mean",
        "clip_low",
        "clip_high",
        "clip_dual",
        "log_ratio_min",
        "log_ratio_max",
        "values",
        "old_values",
        "returns",
        "value_clip",
        "huber_delta",
        "critic_warmup",
        "proximal_log_probs",
        "versions",
        "current_version",
        "behave_weight_threshold",
    }
)
"""Keywords that every policy loss may be given."""


def embodied_key(name: str) -> str:
    """Return the key of an embodied estimator or loss: ``gae`` -> ``embodied/gae``."""
    lowered = name.strip().lower()
    return lowered if lowered.startswith(EMBODIED) else f"{EMBODIED}{lowered}"


def register_embodied_advantage(name: str, *, force: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers an embodied estimator and gives the function back unchanged."""

    def decorate(function: F) -> F:
        advantages.register(embodied_key(name), function, force=force)
        return function

    return decorate


def register_embodied_loss(name: str, *, force: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers an embodied policy loss and gives the function back unchanged."""

    def decorate(function: F) -> F:
        losses.register(embodied_key(name), function, force=force)
        return function

    return decorate


def get_embodied_advantage(name: str) -> Estimator:
    """Return the estimator ``name``, which leaves out common keywords that it does not use.

    Raises:
        NotRegistered: (a ValueError) no such name; known ones are listed.
    """
    estimator: Estimator = advantages.get(embodied_key(name))
    return tolerant(f'advantage estimator "{name}"', estimator, ADVANTAGE_KEYWORDS)


def get_embodied_loss(name: str) -> Loss:
    """Return the policy loss ``name``, which leaves out common keywords that it does not use.

    Raises:
        NotRegistered: (a ValueError) no such name; known ones are listed.
    """
    return tolerant(f'policy loss "{name}"', losses.get(embodied_key(name)), LOSS_KEYWORDS)


def check_embodied_options(kind: Literal["advantage", "loss"], name: str, options: Mapping[str, Any]) -> None:
    """Check before a run that the estimator or loss ``name`` exists and takes these options of the configuration.

    Raises:
        NotRegistered: (a ValueError) no such name.
        UserError: an option it does not have.
    """
    registry: Any = advantages if kind == "advantage" else losses
    declared = declared_keywords(registry.get(embodied_key(name)))
    if declared is not None:
        what = f'advantage estimator "{name}"' if kind == "advantage" else f'policy loss "{name}"'
        select_keywords(what, declared, frozenset(), dict(options))
