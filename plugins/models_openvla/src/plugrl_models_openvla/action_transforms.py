"""From the actions of a data set to those that an environment carries out: conventions of grippers and scales.

A policy returns actions that can be carried out as they are; a transform is the last thing it does. Each is a function
of actions [..., D] that changes nothing in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from plugrl.errors import ConfigError, nearest, one_of

ActionTransform = Callable[[torch.Tensor], torch.Tensor]


def _with_gripper(actions: torch.Tensor, gripper: torch.Tensor) -> torch.Tensor:
    return torch.cat([actions[..., :-1], gripper.to(actions.dtype)], dim=-1)


def signed_gripper(actions: torch.Tensor) -> torch.Tensor:
    """Make the gripper, the last dimension, 1 where it is above 0 and -1 elsewhere: CALVIN's data are signed."""
    return _with_gripper(actions, torch.where(actions[..., -1:] > 0, 1.0, -1.0))


def inverted_gripper(actions: torch.Tensor) -> torch.Tensor:
    """Make the gripper -1 where it is above 0.5, 1 below, and 0 at 0.5: LIBERO closes with 1, its data with 0."""
    return _with_gripper(actions, -torch.sign(2 * actions[..., -1:] - 1))


def scaled_signed_gripper(actions: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Scale all dimensions but the gripper, which becomes 1 above 0.5 and -1 elsewhere."""
    gripper = torch.where(actions[..., -1:] > 0.5, 1.0, -1.0)
    return _with_gripper(actions * scale, gripper)


def position_and_gripper(actions: torch.Tensor) -> torch.Tensor:
    """Keep the three positions and the gripper of seven dimensions: Meta-World does not turn the hand."""
    return torch.cat([actions[..., :3], actions[..., -1:]], dim=-1)


def unchanged(actions: torch.Tensor) -> torch.Tensor:
    """Return the actions as they are."""
    return actions


TRANSFORMS: Mapping[str, Callable[..., torch.Tensor]] = {
    "none": unchanged,
    "widowx": scaled_signed_gripper,
    "libero": inverted_gripper,
    "calvin": signed_gripper,
    "metaworld": position_and_gripper,
}
"""Transforms by the name that ``model.action_transform`` has."""

_SCALED = {"widowx"}


def action_transform(name: str | None, scale: float = 1.0) -> ActionTransform:
    """Return the transform of this name, ``none`` for None; ``scale`` is for those that scale.

    Raises ConfigError for an unknown name, and for a scale that would have no effect.
    """
    key = name or "none"
    if key not in TRANSFORMS:
        close = nearest(key, TRANSFORMS)
        hint = f' Did you mean "{close}"?' if close else ""
        raise ConfigError(f'model.action_transform: there is no "{name}".{hint} There is: {one_of(TRANSFORMS)}.')
    if key in _SCALED:
        return partial(TRANSFORMS[key], scale=scale)
    if scale != 1.0:
        raise ConfigError(f'model.action_scale: {scale} has no effect, since "{key}" scales nothing.')
    return TRANSFORMS[key]
