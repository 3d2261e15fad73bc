"""The scale of actions and of proprioception: statistics of a data set, by which they are mapped to [-1, 1]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from plugrl.errors import ConfigError, nearest, one_of

Bounds = Literal["bounds", "bounds_q99"]
"""Which statistics are -1 and 1: smallest and largest value, or the quantiles 0.01 and 0.99."""

_BOUNDS: Mapping[str, tuple[str, str]] = {"bounds": ("min", "max"), "bounds_q99": ("q01", "q99")}
EPSILON = 1e-8
"""Added to the range by OpenVLA-OFT in both directions, and by OpenVLA where it normalises."""


@dataclass(frozen=True, eq=False)
class NormStatistics:
    """An affine map between values of a robot, in its own units, and [-1, 1].

    Args:
        low, high: the values that become -1 and 1, float64 [D].
        mask: bool [D]; where False, values pass as they are (a gripper that is 0 or 1).
        epsilon: added to ``high - low`` in :meth:`unnormalise`.
    """

    low: torch.Tensor
    high: torch.Tensor
    mask: torch.Tensor
    epsilon: float = 0.0

    @classmethod
    def of(
        cls,
        norm_stats: Mapping[str, Any],
        unnorm_key: str | None,
        *,
        kind: str = "action",
        bounds: Bounds = "bounds_q99",
        epsilon: float = 0.0,
        fallback_suffix: str | None = None,
        uses_mask: bool = True,
    ) -> NormStatistics:
        """Return what ``norm_stats`` of a checkpoint says of ``kind`` (action or proprio) for a data set.

        Raises ConfigError that lists what there is; see :func:`resolve_unnorm_key` for the data set.
        """
        key = resolve_unnorm_key(norm_stats, unnorm_key, fallback_suffix)
        entry = norm_stats[key]
        if kind not in entry:
            raise ConfigError(f'model.unnorm_key: "{key}" has no statistics of {kind!r}. It has: {one_of(entry)}.')
        return cls.read(entry[kind], bounds=bounds, epsilon=epsilon, uses_mask=uses_mask, where=f"{key}.{kind}")

    @classmethod
    def read(
        cls,
        values: Mapping[str, Any],
        *,
        bounds: str = "bounds_q99",
        epsilon: float = 0.0,
        uses_mask: bool = True,
        where: str = "statistics",
    ) -> NormStatistics:
        """Return the statistics of one entry; a missing mask means True everywhere. Raises ConfigError."""
        if bounds not in _BOUNDS:
            raise ConfigError(f"model.action_norm: {bounds!r} is none of {one_of(_BOUNDS)}.")
        found = []
        for name in _BOUNDS[bounds]:
            if name not in values:
                raise ConfigError(
                    f"norm_stats.{where}: {name} is missing, which {bounds} needs. It has: {one_of(values)}."
                )
            found.append(torch.tensor(values[name], dtype=torch.float64))
        low, high = found
        mask = values.get("mask") if uses_mask else None
        mask = torch.ones(low.shape, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
        if low.dim() != 1 or low.shape != high.shape or low.shape != mask.shape:
            raise ConfigError(
                f"norm_stats.{where}: {' and '.join(_BOUNDS[bounds])} and mask must be lists of one length; they have "
                f"{len(low)}, {len(high)} and {len(mask)}."
            )
        return cls(low, high, mask, epsilon)

    @property
    def size(self) -> int:
        """Number of dimensions."""
        return len(self.low)

    def unnormalise(self, values: torch.Tensor) -> torch.Tensor:
        """Return [..., D] of the robot's units for [..., D] of [-1, 1]: float32, on the host.

        Where the last dimension is a multiple of the statistics' (a chunk of actions in a row), they are repeated.
        """
        low, high, mask = self._fitted(values)
        values = values.detach().cpu().double()
        return torch.where(mask, 0.5 * (values + 1) * (high - low + self.epsilon) + low, values).float()

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """Return [..., D] of [-1, 1], clipped, for [..., D] of the robot's units: float32, on the host.

        A dimension that never changes in the data becomes 0.
        """
        low, high, mask = self._fitted(values)
        values = values.detach().cpu().double()
        scaled = (2 * (values - low) / (high - low + EPSILON) - 1).clamp(-1, 1)
        scaled = torch.where(low == high, torch.zeros_like(scaled), scaled)
        return torch.where(mask, scaled, values).float()

    def _fitted(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width = values.shape[-1] if values.dim() else 0
        if not width or width % self.size:
            raise ConfigError(
                f"model.action_dim: values of {width} dimensions do not fit statistics of {self.size}; choose the "
                "unnorm_key of a robot with as many."
            )
        times = width // self.size
        return self.low.repeat(times), self.high.repeat(times), self.mask.repeat(times)


def resolve_unnorm_key(norm_stats: Mapping[str, Any], key: str | None, fallback_suffix: str | None = None) -> str:
    """Return the data set that ``key`` names, or the only one there is when it is None.

    ``fallback_suffix``: also try ``key`` with this at its end. Raises ConfigError that lists the data sets.
    """
    if not norm_stats:
        raise ConfigError("model.unnorm_key: the checkpoint has no norm_stats, so actions have no scale.")
    if key is None:
        if len(norm_stats) == 1:
            return next(iter(norm_stats))
        raise ConfigError(
            f"model.unnorm_key: the checkpoint has statistics of several data sets; name one of {one_of(norm_stats)}."
        )
    for name in (key, f"{key}{fallback_suffix}" if fallback_suffix else key):
        if name in norm_stats:
            return name
    close = nearest(key, norm_stats)
    hint = f' Did you mean "{close}"?' if close else ""
    raise ConfigError(
        f'model.unnorm_key: the checkpoint has no statistics of "{key}".{hint} It has: {one_of(norm_stats)}.'
    )


def merged_statistics(config: Mapping[str, Any], companion: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``norm_stats`` of config.json with those of ``dataset_statistics.json`` over them."""
    return {**config, **(companion or {})}

