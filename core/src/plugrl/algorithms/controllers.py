"""Controllers of the weight of the KL penalty in the reward; plain numbers, no torch."""

from __future__ import annotations

from typing import Protocol

from plugrl.errors import UserError


class KLController(Protocol):
    """Holds the weight of the KL penalty in ``value`` and moves it after each step."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Take note of the measured KL over ``n_steps`` samples."""

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint must keep."""

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint."""


class FixedKLController:
    """A constant weight."""

    def __init__(self, kl_coef: float = 0.001) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Leave the weight as it is."""

    def state_dict(self) -> dict[str, float]:
        """Return the weight."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Keep the configured weight: it is not part of what training changed."""


class AdaptiveKLController:
    """A weight that steers the KL towards a target. Source: arXiv:1909.08593, section 2.2.

    Each update multiplies it by 1 + clip(kl / target_kl - 1, -0.2, 0.2) x n_steps / horizon.

    Raises:
        UserError: (a ValueError) a target or horizon that is not positive.
    """

    def __init__(self, kl_coef: float = 0.001, *, target_kl: float = 0.1, horizon: int = 10000) -> None:
        if target_kl <= 0 or horizon <= 0:
            raise UserError(f"target_kl and horizon must be positive, not {target_kl} and {horizon}.")
        self.value = kl_coef
        self.target_kl = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move the weight after ``n_steps`` samples whose mean KL was ``current_kl``."""
        error = min(max(current_kl / self.target_kl - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon

    def state_dict(self) -> dict[str, float]:
        """Return the weight."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on with the weight of a checkpoint."""
        self.value = float(state["value"])


def make_kl_controller(
    type: str = "fixed", *, kl_coef: float = 0.001, target_kl: float = 0.1, horizon: int = 10000
) -> KLController:
    """Return the controller that ``algorithm.kl_ctrl`` describes.

    Raises:
        UserError: (a ValueError) an unknown type, or a target or horizon that is not positive.
    """
    if type == "fixed":
        return FixedKLController(kl_coef)
    if type == "adaptive":
        return AdaptiveKLController(kl_coef, target_kl=target_kl, horizon=horizon)
    raise UserError(f'algorithm.kl_ctrl.type is "{type}". Known: adaptive, fixed.')
