"""The built-in steps: normalisation by statistics, its inverse, and renaming.

``mean_std`` is ``(x - mean) / (std + eps)``; ``min_max`` maps the range of the data to [-1, 1]; ``identity`` does
nothing.
Configuration and names of the state are LeRobot's, so that either reads the other's files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from plugrl.errors import CheckpointError, ConfigError, one_of
from plugrl.processors.registry import ProcessorStep, check_names

KINDS = ("STATE", "ACTION", "VISUAL", "ENV")
NEEDED: Mapping[str, tuple[str, ...]] = {"MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "IDENTITY": ()}
"""Statistics that each mode of normalisation needs."""

Statistics = Mapping[str, Mapping[str, Tensor]]
"""``{feature: {"mean" | "std" | "min" | "max": tensor of the feature's shape}}``."""


class Scaler(ProcessorStep):
    """What normalising and its inverse have in common.

    Args:
        features: ``{name: {"type": STATE | ACTION | VISUAL | ENV, "shape": [...]}}``.
        norm_map: mode by kind of feature, or by the name of one: MEAN_STD, MIN_MAX or IDENTITY.
        statistics: of the features that are scaled; None leaves them to :meth:`load_state_dict`.
        eps: keeps a feature that never changes finite.

    Raises:
        ConfigError: an unknown kind or mode, or statistics that are not there; the feature is named.
    """

    inverse: ClassVar[bool] = False

    def __init__(
        self,
        features: Mapping[str, Mapping[str, Any]],
        norm_map: Mapping[str, str],
        statistics: Statistics | None = None,
        eps: float = 1e-8,
    ) -> None:
        self.features = {name: dict(feature) for name, feature in features.items()}
        self.norm_map = dict(norm_map)
        self.eps = float(eps)
        self._modes = {name: self._mode(name) for name in self.features}
        self._tensors: dict[str, Tensor] = {}
        for name, mode in self._modes.items():
            for statistic in NEEDED[mode]:
                self._tensors[f"{name}.{statistic}"] = self._initial(name, statistic, statistics)

    def _mode(self, name: str) -> str:
        kind = str(self.features[name].get("type"))
        if kind not in KINDS:
            raise ConfigError(f"Feature {name} has the type {kind!r}, which is none of {one_of(KINDS)}.")
        mode = str(self.norm_map.get(name, self.norm_map.get(kind, "IDENTITY")))
        if mode not in NEEDED:
            raise ConfigError(f"sft.normalization: {name} is to be normalised by {mode!r}, not {one_of(NEEDED)}.")
        return mode

    def _initial(self, name: str, statistic: str, statistics: Statistics | None) -> Tensor:
        shape = tuple(self.features[name]["shape"])
        if statistics is None:
            return torch.zeros(shape)
        known = statistics.get(name, {})
        if statistic not in known:
            raise ConfigError(
                f"sft.normalization: {name} needs the statistic {statistic!r}, which the data set does not give. "
                f"It gives: {one_of(known)}."
            )
        value = torch.as_tensor(known[statistic], dtype=torch.float32)
        fitted = self._fitted(name, value)
        if fitted is None or not fitted.isfinite().all():
            problem = f"has shape {list(value.shape)}" if fitted is None else "has values that are not finite"
            raise ConfigError(
                f"sft.normalization: the statistic {statistic!r} of {name} {problem}; the feature has the shape "
                f"{list(shape)}. Correct the statistics of the data set, or give {name} the mode identity."
            )
        return fitted

    def _fitted(self, name: str, value: Tensor) -> Tensor | None:
        """Return a statistic in the shape of its feature, None when it does not fit.

        One of a picture may be of its channels alone.
        """
        shape = tuple(self.features[name]["shape"])
        if value.shape == shape or value.numel() == 1 == math.prod(shape):
            return value.reshape(shape).clone()
        spread = len(value.shape) == len(shape) and all(
            size in (1, whole) for size, whole in zip(value.shape, shape, strict=True)
        )
        return value.expand(shape).clone() if spread and self.features[name].get("type") == "VISUAL" else None

    def config(self) -> dict[str, Any]:
        """Return features, modes and ``eps``; the statistics are state."""
        return {"eps": self.eps, "features": self.features, "norm_map": self.norm_map}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics as ``<feature>.<statistic>``, float32."""
        return dict(self._tensors)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take statistics. Raises CheckpointError for names or shapes that do not fit the features."""
        check_names(type(self).__name__, self._tensors, state)
        tensors = {}
        for name, tensor in state.items():
            fitted = self._fitted(name.rpartition(".")[0], tensor.float())
            if fitted is None:
                raise CheckpointError(
                    f"The statistic {name} has shape {tuple(tensor.shape)}, not {tuple(self._tensors[name].shape)}."
                )
            tensors[name] = fitted
        self._tensors = tensors

    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scale every feature that the batch has, ``[..., *shape]``."""
        scaled = dict(batch)
        for name, mode in self._modes.items():
            if name in batch and mode != "IDENTITY":
                scaled[name] = self._scale(name, mode, batch[name])
        return scaled

    def _scale(self, name: str, mode: str, value: Tensor) -> Tensor:
        dtype = value.dtype if value.is_floating_point() else torch.float32
        value = value.to(dtype)
        first, second = (self._tensors[f"{name}.{key}"].to(value.device, dtype) for key in NEEDED[mode])
        if mode == "MEAN_STD":
            spread = second + self.eps
            return value * spread + first if self.inverse else (value - first) / spread
        spread = second - first
        spread = torch.where(spread == 0, torch.full_like(spread, self.eps), spread)
        return (value + 1) / 2 * spread + first if self.inverse else 2 * (value - first) / spread - 1


class Normalizer(Scaler):
    """Features to a common scale."""


class Unnormalizer(Scaler):
    """The inverse of :class:`Normalizer`."""

    inverse = True


class Renamer(ProcessorStep):
    """Gives features other names. ``rename_map`` is ``{old: new}``; what it does not name keeps its name."""

    def __init__(self, rename_map: Mapping[str, str]) -> None:
        self.rename_map = dict(rename_map)

    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch under the new names."""
        return {self.rename_map.get(name, name): tensor for name, tensor in batch.items()}

    def config(self) -> dict[str, Any]:
        """Return the map."""
        return {"rename_map": self.rename_map}


def norm_map(normalization: Mapping[str, str], features: Sequence[str]) -> dict[str, str]:
    """Return the modes that ``sft.normalization`` means, over the usual ones.

    Keys are kinds (``state``, ``action``, ``visual``, ``env``) or names of features. Raises ConfigError for any other.
    """
    modes = {"STATE": "MEAN_STD", "ENV": "MEAN_STD", "ACTION": "MEAN_STD", "VISUAL": "IDENTITY"}
    for key, mode in normalization.items():
        name = key.upper() if key.upper() in KINDS else key
        if name not in KINDS and name not in features:
            kinds = [kind.lower() for kind in KINDS]
            raise ConfigError(f"sft.normalization.{key}: is none of the features, {one_of([*kinds, *features])}.")
        modes[name] = mode.upper()
    return modes
