"""At which level probabilities are compared: tokens, actions or whole chunks."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from plugrl.algorithms.embodied.averaging import match
from plugrl.errors import UserError, one_of

Level = Literal["token_level", "action_level", "chunk_level"]
LEVELS: tuple[str, ...] = get_args(Level)

TOLERANCE = 1e-4
"""How far rounding may lift the logarithm of a probability above 0."""


def at_level(values: Tensor, level: str, action_dim: int = 1) -> Tensor:
    """Sum log-probabilities or entropies of tokens up to a level.

    Args:
        values: [B, C, D] or [B, C D], of C actions of D tokens (or dimensions) each.
        level: ``token_level`` -> [B, C, D]; ``action_level`` -> [B, C]; ``chunk_level`` -> [B].
        action_dim: D, where ``values`` is flat.

    Raises:
        UserError: (a ValueError) an unknown level, or tokens that are no whole number of actions.
    """
    if level not in LEVELS:
        raise UserError(f'No level "{level}" of probabilities. Known: {one_of(LEVELS)}.')
    if values.dim() == 2:
        if values.shape[1] % action_dim:
            raise UserError(f"{values.shape[1]} tokens are no whole number of actions of {action_dim} tokens.")
        values = values.reshape(values.shape[0], -1, action_dim)
    if level == "token_level":
        return values
    return values.sum(-1) if level == "action_level" else values.flatten(1).sum(1)


def check_log_probs(log_probs: Tensor, mask: Tensor | None = None) -> None:
    """Raise UserError if the log-probability of a discrete action is above 0: a density, or another distribution.

    ``mask`` has leading dimensions of ``log_probs``; None checks all.
    """
    values, valid = match(log_probs, mask)
    chosen = values[valid]
    if chosen.numel() and not bool((chosen <= TOLERANCE).all()):
        worst = float(torch.nan_to_num(chosen, nan=torch.inf).max())
        raise UserError(
            f"A discrete policy reports a log-probability of {worst:.4g}: probabilities are at most 1. "
            "Does it normalise over the tokens it may choose, and in the same way when it acts and when it is trained?"
        )
