"""The section ``ema``: whether and how a moving average of the weights is kept.

Source of the schedule: diffusers' EMAModel, whose names the keys have.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class EmaConfig(BaseModel):
    """The section ``ema``. Without ``decay`` it grows from ``min_decay`` to ``max_decay`` with the updates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enable: bool = Field(False, description="keep a moving average of the trained parameters")
    decay: float | None = Field(None, ge=0, le=1, description="constant decay; null: it grows by the schedule")
    update_after_step: int = Field(0, ge=0, description="optimizer updates during which the average follows at once")
    inv_gamma: float = Field(1.0, gt=0, description="schedule 1 - (1 + updates / inv_gamma) ** -power")
    power: float = Field(0.75, gt=0, description="see inv_gamma")
    min_decay: float = Field(0.0, ge=0, le=1, description="lowest decay of the schedule")
    max_decay: float = Field(0.9999, ge=0, le=1, description="highest decay of the schedule")
    use_for_eval: bool = Field(True, description="validate with the averaged weights")

    @model_validator(mode="after")
    def _one_rule(self) -> EmaConfig:
        fields = type(self).model_fields
        bounds = [key for key in ("inv_gamma", "power", "min_decay", "max_decay")
                  if getattr(self, key) != fields[key].default]  # fmt: skip
        if self.decay is not None and bounds:
            raise ValueError(f"decay is constant and leaves no schedule to {', '.join(bounds)}; give one or the other")
        if self.min_decay > self.max_decay:
            raise ValueError(f"min_decay {self.min_decay} is more than max_decay {self.max_decay}")
        return self

    def decay_at(self, updates: int) -> float:
        """The decay of an update, when ``updates`` of them have been done, this one included."""
        since = updates - self.update_after_step - 1
        if since <= 0:
            return 0.0
        if self.decay is not None:
            return self.decay
        value = 1.0 - (1.0 + since / self.inv_gamma) ** -self.power
        return min(max(value, self.min_decay), self.max_decay)
