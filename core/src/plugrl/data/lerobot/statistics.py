"""Statistics of the features of a data set: those of LeRobot's ``stats.json``, and those by which a policy scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES: Mapping[str, float] = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
STATISTICS_FILE = "dataset_statistics.json"
"""``{name: statistics}`` beside ``meta/``, as VLA checkpoints have it."""


def describe(values: NDArray[Any]) -> dict[str, list[Any]]:
    """Describe rows [N, D] of numbers: ``min``, ``max``, ``mean``, ``std``, quantiles and ``count``, lists [D]."""
    exact = values.astype(np.float64)
    found = {
        "min": exact.min(0), "max": exact.max(0), "mean": exact.mean(0), "std": exact.std(0),
        **{name: np.quantile(exact, share, axis=0) for name, share in QUANTILES.items()},
    }  # fmt: skip
    return {**{name: value.tolist() for name, value in found.items()}, "count": [len(values)]}


class PictureStatistics:
    """Minimum, maximum, mean and deviation of each channel over all pixels of pictures uint8 [H, W, 3], in [0, 1]."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, 256), dtype=np.int64)
        self.frames = 0

    def add(self, pictures: NDArray[np.uint8]) -> None:
        """Count the pictures [T, H, W, 3]."""
        self.frames += len(pictures)
        for channel in range(3):
            self._counts[channel] += np.bincount(pictures[..., channel].ravel(), minlength=256)

    def describe(self) -> dict[str, Any]:
        """Return the statistics, each [3, 1, 1] as LeRobot has them, and ``count``, the number of pictures."""
        levels = np.arange(256) / 255
        total = self._counts.sum(1)
        mean = self._counts @ levels / total
        std = np.sqrt(np.maximum(self._counts @ levels**2 / total - mean**2, 0))
        seen = self._counts > 0
        found = {
            "min": levels[seen.argmax(1)], "max": levels[255 - seen[:, ::-1].argmax(1)], "mean": mean, "std": std,
        }  # fmt: skip
        cumulated = self._counts.cumsum(1)
        for name, share in QUANTILES.items():
            found[name] = levels[(cumulated >= (share * total)[:, None]).argmax(1)]
        return {**{name: value.reshape(3, 1, 1).tolist() for name, value in found.items()}, "count": [self.frames]}


def norm_stats(
    actions: NDArray[Any], states: NDArray[Any] | None, episodes: int, mask: Sequence[bool] | None = None
) -> dict[str, Any]:
    """Return what a policy scales actions and states by, in the form of a VLA checkpoint's ``norm_stats``.

    Args:
        actions: [N, D] of all frames.
        states: [N, S], where there are any.
        episodes: how many the frames are of.
        mask: False for numbers of an action that are not scaled, such as those of a gripper; all are by default.
    """
    found: dict[str, Any] = {"action": _scales(actions)}
    found["action"]["mask"] = [True] * actions.shape[1] if mask is None else [bool(item) for item in mask]
    if states is not None:
        found["proprio"] = _scales(states)
    return {**found, "num_transitions": len(actions), "num_trajectories": episodes}


def _scales(values: NDArray[Any]) -> dict[str, Any]:
    described = describe(values)
    return {name: described[name] for name in ("mean", "std", "max", "min", "q01", "q99")}
