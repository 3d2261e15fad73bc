"""The loss scale of fp16 training (Micikevicius et al., Mixed Precision Training, 2018).

torch's GradScaler looks at each rank's own gradients. Here the norm over the whole mesh says whether a step is finite,
so all ranks decide alike in every layout, and gradients of any dtype can be unscaled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from plugrl.errors import CheckpointError
from plugrl_engine_fsdp.config.section import GradScalerConfig

_log = logging.getLogger(__name__)
_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class LossScale:
    """A factor on the loss that keeps small gradients representable; the five numbers of torch's GradScaler."""

    def __init__(self, config: GradScalerConfig) -> None:
        self.scale = config.init_scale
        self.growth_factor = config.growth_factor
        self.backoff_factor = config.backoff_factor
        self.growth_interval = config.growth_interval
        self.min_scale = config.min_scale
        self._growth_tracker = 0

    def update(self, finite: bool) -> None:
        """Shrink after a step that was not finite, grow after ``growth_interval`` finite ones in a row.

        At ``min_scale`` it stays: a scale that went on towards zero would in the end turn every gradient into zero,
        which is finite, and the weights would stand still without a word.
        """
        if not finite:
            if self.scale == self.min_scale:
                _log.warning(
                    "the gradient is not finite at the smallest loss scale, %g: the loss or the model is not, whatever "
                    "the precision; grad_scaler.min_scale would let the scale shrink further", self.scale,
                )  # fmt: skip
            self.scale = max(self.scale * self.backoff_factor, self.min_scale)
            self._growth_tracker = 0
            return
        self._growth_tracker += 1
        if self._growth_tracker == self.growth_interval:
            self.scale *= self.growth_factor
            self._growth_tracker = 0

    def state_dict(self) -> dict[str, float]:
        """The five numbers, under the names of torch's GradScaler."""
        return {key: getattr(self, key) for key in _KEYS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with stored numbers. Raises CheckpointError naming one that is missing."""
        missing = [key for key in _KEYS if key not in state]
        if missing:
            raise CheckpointError(f"scaler_state.json lacks {', '.join(missing)}")
        for key in _KEYS:
            setattr(self, key, type(getattr(self, key))(state[key]))
        self.scale = max(self.scale, self.min_scale)
