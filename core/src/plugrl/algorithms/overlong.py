"""A penalty for responses that come close to the length limit."""

from __future__ import annotations

from torch import Tensor


def overlong_penalty(lengths: Tensor, max_length: int, *, buffer: int, factor: float = 1.0) -> Tensor:
    """Return what is added to the rewards, float [B], 0 or less.

    Nothing up to ``max_length - buffer`` tokens, then falling linearly to ``-factor`` at ``max_length``. Source: DAPO,
    arXiv:2503.14476, equation 13.

    Args:
        lengths: tokens of the responses, [B].
        max_length: the limit.
        buffer: tokens over which the penalty grows.
        factor: the whole penalty.
    """
    excess = (lengths - (max_length - buffer)).clamp(min=0)
    return excess * (-factor / buffer)
