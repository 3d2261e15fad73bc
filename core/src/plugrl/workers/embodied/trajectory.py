"""What a rollout in environments brings, time-major, with one check of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from plugrl.errors import PlugRLError
from plugrl.workers.embodied.packed import PackedTensors

_INPUTS = "forward_inputs."
_OPTIONAL = ("prev_values", "bootstrap_values")


class TrajectoryError(PlugRLError, ValueError):
    """A trajectory of the wrong shape, or parts that do not fit together; names the field."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """T chunks of C actions with D numbers each, in B scenes.

    rewards: float [T, B, C]. terminations, truncations: bool [T + 1, B, C]; an entry tells whether the episode ended
    *before* what stands at the same place, so the first is False. executed: bool [T, B, C], the action was carried out.
    valid: bool [T, B], False for episodes whose simulator died. prev_logprobs: float [T, B, C, D]. prev_values: float
    [T + 1, B, V], V being 1 or C, the last of the state after the last chunk; None without a value head.
    bootstrap_values: float [T, B], the value of an episode's last state where it ended and one is wanted, else 0.
    versions: int64 [T, B], of the weights that acted. forward_inputs: by name, each [T, B, ...].
    """

    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    executed: Tensor
    valid: Tensor
    prev_logprobs: Tensor
    versions: Tensor
    prev_values: Tensor | None = None
    bootstrap_values: Tensor | None = None
    forward_inputs: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def dones(self) -> Tensor:
        """Bool [T + 1, B, C]: the episode ended, one way or the other."""
        return self.terminations | self.truncations

    @property
    def num_scenes(self) -> int:
        """B."""
        return int(self.rewards.shape[1])

    def check(self, action_dim: int | None = None) -> Trajectory:
        """Return the trajectory itself. Raises TrajectoryError naming the field, its shape and the expected one."""
        chunks, scenes, width = self.rewards.shape
        wanted: dict[str, Sequence[int | None]] = {
            "terminations": (chunks + 1, scenes, width),
            "truncations": (chunks + 1, scenes, width),
            "executed": (chunks, scenes, width),
            "valid": (chunks, scenes),
            "prev_logprobs": (chunks, scenes, width, action_dim),
            "versions": (chunks, scenes),
            "bootstrap_values": (chunks, scenes),
        }
        for name, shape in wanted.items():
            _check(name, getattr(self, name), shape)
        if self.prev_values is not None and self.prev_values.shape != (chunks + 1, scenes, 1):
            _check("prev_values", self.prev_values, (chunks + 1, scenes, width))
        for name, tensor in self.forward_inputs.items():
            if tensor.shape[:2] != (chunks, scenes):
                raise TrajectoryError(
                    f"forward_inputs[{name!r}] has shape {list(tensor.shape)}, expected [{chunks}, {scenes}, ...]."
                )
        if self.dones[0].any():
            raise TrajectoryError("terminations or truncations are set before the first chunk.")
        if not torch.isfinite(self.rewards).all():
            raise TrajectoryError("rewards are not finite.")
        return self

    def pack(self) -> PackedTensors:
        """Return all tensors as arrays, for :meth:`join`."""
        found = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "forward_inputs"}
        tensors = {name: value for name, value in found.items() if value is not None}
        return PackedTensors.pack(tensors | {_INPUTS + name: value for name, value in self.forward_inputs.items()})

    @classmethod
    def join(cls, parts: Sequence[PackedTensors]) -> Trajectory:
        """Put trajectories of the same length side by side, scene after scene.

        Raises TrajectoryError for a field that only some of them have, or whose shape differs.
        """
        for name in dict.fromkeys(name for part in parts for name in part.arrays):
            if not all(name in part.arrays for part in parts):
                raise TrajectoryError(f"{name} is in some parts of a trajectory and not in others.")
            shapes = {tuple(part.arrays[name][0].shape[:1] + part.arrays[name][0].shape[2:]) for part in parts}
            if len(shapes) > 1:
                raise TrajectoryError(f"{name} differs in shape between the parts of a trajectory: {sorted(shapes)}.")
        tensors = PackedTensors.join(parts, 1)
        inputs = {name.removeprefix(_INPUTS): value for name, value in tensors.items() if name.startswith(_INPUTS)}
        plain: dict[str, Any] = {name: value for name, value in tensors.items() if not name.startswith(_INPUTS)}
        return cls(forward_inputs=inputs, **plain)


def merge_rows(tensor: Tensor) -> Tensor:
    """Turn [T, B, ...] into rows [T B, ...], chunk after chunk."""
    return tensor.flatten(0, 1)


def _check(name: str, tensor: Tensor | None, expected: Sequence[int | None]) -> None:
    if tensor is None:
        if name in _OPTIONAL:
            return
        raise TrajectoryError(f"{name} is missing.")
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected) and all(b is None or a == b for a, b in zip(shape, expected, strict=True))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise TrajectoryError(f"{name} has shape {list(shape)}, expected [{wanted}].")
