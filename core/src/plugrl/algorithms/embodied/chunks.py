"""Between chunks [n, B, C], in which a policy acts, and steps [n C, B], over which returns run."""

from __future__ import annotations

from torch import Tensor

from plugrl.errors import UserError


def flatten_chunks(values: Tensor) -> Tensor:
    """Order [n, B, C] by time: [n C, B]; within a chunk its columns follow each other."""
    chunks, scenes, width = values.shape
    return values.permute(0, 2, 1).reshape(chunks * width, scenes)


def unflatten_steps(values: Tensor, width: int) -> Tensor:
    """Turn [n C, B] back into [n, B, C] with C = ``width``."""
    steps, scenes = values.shape
    return values.reshape(steps // width, width, scenes).permute(0, 2, 1)


def flatten_flags(flags: Tensor) -> Tensor:
    """Order flags [n + 1, B, C] by time: [n C + 1, B]; the first says whether the first step begins after an end.

    Of the columns that stand before the first chunk only the last is next to a step.
    """
    return flatten_chunks(flags)[flags.shape[2] - 1 :]


def flatten_values(values: Tensor) -> Tensor:
    """Order values [n + 1, B, C] by time: [n C + 1, B]; after the last chunk only the first column is a state."""
    return flatten_chunks(values)[: (values.shape[0] - 1) * values.shape[2] + 1]


def merge_epochs(values: Tensor, epochs: int) -> Tensor:
    """Put rollout epochs that followed each other, [E T, B, ...], side by side: [T, E B, ...].

    Epoch 0 comes first, so that the scenes of a group stay next to each other. For flags and values, which have one
    more entry an epoch, T counts that entry.

    Raises:
        UserError: (a ValueError) the length is no multiple of ``epochs``.
    """
    length, scenes = values.shape[:2]
    if epochs < 1 or length % epochs:
        raise UserError(f"{length} entries in time cannot be cut into {epochs} rollout epochs of equal length.")
    parts = values.reshape(epochs, length // epochs, scenes, *values.shape[2:])
    return parts.transpose(0, 1).reshape(length // epochs, epochs * scenes, *values.shape[2:])
