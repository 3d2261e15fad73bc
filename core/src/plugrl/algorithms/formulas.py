"""What every built-in policy loss shares: masking first, then a formula for each token, then aggregation.

A formula sees tensors in which masked positions are already 0, so that nothing that stands there can reach the loss or
its gradient; it returns the loss of each token and metrics.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from plugrl.algorithms.aggregation import aggregate
from plugrl.algorithms.masking import as_mask, full_precision, masked_mean, zero_masked
from plugrl.algorithms.registry import LOSS_KEYWORDS, declared_keywords, select_keywords

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before exp: beyond it the clipped loss is flat anyhow, and exp would overflow."""

Metrics = dict[str, Tensor]
Formula = Callable[..., tuple[Tensor, Metrics]]
"""``formula(log_probs, old_log_probs, advantages, mask, **options) -> (per-token loss [B, T], metrics)``."""


def log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Return log(new / old) of each token, clamped so that its exp is finite."""
    return (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def share(condition: Tensor, mask: Tensor) -> Tensor:
    """Return the share of valid tokens where ``condition`` holds: 0-d float."""
    return masked_mean(condition.float(), mask)


def loss_metrics(
    log_ratios: Tensor, mask: Tensor, *, clipped: Tensor | None = None, lower: Tensor | None = None
) -> Metrics:
    """Return ``actor/ppo_kl`` = mean(-log ratio), and the share of clipped tokens and of those at the lower bound."""
    zero = masked_mean(log_ratios.detach(), mask) * 0
    return {
        "actor/pg_clipfrac": zero if clipped is None else share(clipped, mask),
        "actor/ppo_kl": masked_mean(-log_ratios.detach(), mask),
        "actor/pg_clipfrac_lower": zero if lower is None else share(lower, mask),
    }


def token_loss(*, aggregation: str | None = None) -> Callable[[Formula], Callable[..., tuple[Tensor, Metrics]]]:
    """Return a decorator that makes a policy loss of a per-token formula.

    The loss takes ``(log_probs, old_log_probs, advantages, mask, *, aggregation="token-mean", rollout_is_weights=None,
    dp_size=1, batch_num_tokens=None, global_batch_size=None, loss_scale_factor=None, **options of the formula)``.
    ``rollout_is_weights`` [B, T] multiply the loss of each token and leave the metrics alone. ``aggregation`` given
    here fixes the mode of a method that is defined with it.
    """
    fixed = aggregation

    def decorate(formula: Formula) -> Callable[..., tuple[Tensor, Metrics]]:
        declared = declared_keywords(formula)
        assert declared is not None
        name = f'policy loss "{formula.__name__}"'

        @functools.wraps(formula)
        def loss(
            log_probs: Tensor,
            old_log_probs: Tensor,
            advantages: Tensor,
            mask: Tensor,
            *,
            aggregation: str = "token-mean",
            rollout_is_weights: Tensor | None = None,
            dp_size: int = 1,
            batch_num_tokens: int | float | Tensor | None = None,
            global_batch_size: int | float | Tensor | None = None,
            loss_scale_factor: float | None = None,
            **options: Any,
        ) -> tuple[Tensor, Metrics]:
            valid = as_mask(mask)
            new, old, gains = (zero_masked(full_precision(x), valid) for x in (log_probs, old_log_probs, advantages))
            chosen = select_keywords(name, declared, LOSS_KEYWORDS, options)
            per_token, metrics = formula(new, old.detach(), gains.detach(), valid, **chosen)
            if rollout_is_weights is not None:
                per_token = per_token * zero_masked(full_precision(rollout_is_weights), valid).detach()
            total = aggregate(
                per_token,
                valid,
                fixed or aggregation,
                dp_size=dp_size,
                batch_num_tokens=batch_num_tokens,
                global_batch_size=global_batch_size,
                loss_scale_factor=loss_scale_factor,
            )
            return total, metrics

        loss.__signature__ = _signature(loss, formula)  # type: ignore[attr-defined]
        return loss

    return decorate


def _signature(loss: Callable[..., Any], formula: Formula) -> inspect.Signature:
    """Return the loss's own signature with the formula's options in place of ``**options``."""
    own = inspect.signature(loss, follow_wrapped=False).parameters.values()
    options = inspect.signature(formula).parameters.values()
    kept = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    return inspect.Signature([*kept, *(option for option in options if option.kind is option.KEYWORD_ONLY)])
