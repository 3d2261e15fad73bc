"""Learning-rate schedules as factors of the peak rate: plain arithmetic, shared by all engines."""

from __future__ import annotations

import math

from plugrl.errors import UserError, one_of

KINDS = ("constant", "cosine")
"""Known schedules."""


def resolve_warmup_steps(steps: int, ratio: float, total: int) -> int:
    """Return the warm-up in steps: ``steps`` if positive, else the share ``ratio`` of ``total`` (verl's rule)."""
    return steps if steps > 0 else int(ratio * total)


def lr_factor(
    step: int,
    *,
    total: int,
    warmup: int = 0,
    kind: str = "constant",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    """Return what the peak learning rate is multiplied by at ``step`` (0 is the first optimizer step).

    The warm-up rises linearly from 0 over ``warmup`` steps. Then ``constant`` stays at 1, and ``cosine`` goes through
    ``num_cycles`` periods from 1 down to ``min_lr_ratio`` at step ``total``, where it stays.

    Raises:
        UserError: (a ValueError) an unknown kind, or a negative step.
    """
    if kind not in KINDS:
        raise UserError(f'No learning-rate schedule "{kind}". Known: {one_of(KINDS)}.')
    if step < 0:
        raise UserError(f"A learning-rate schedule has no step {step}.")
    if step < warmup:
        return step / warmup
    if kind == "constant":
        return 1.0
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return min_lr_ratio + (1 - min_lr_ratio) * (1 + math.cos(2 * math.pi * num_cycles * progress)) / 2
