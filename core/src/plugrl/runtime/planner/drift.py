"""When a plan no longer fits: measured phases that stay away from what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plugrl.runtime.planner.case import Case

THRESHOLD = 0.15
PATIENCE = 5


@dataclass(frozen=True)
class Drift:
    """A phase whose measured time stayed away from the predicted one: plan again at the next border of steps.

    ``ratio`` is measured over predicted, the mean of the last ``steps`` steps.
    """

    phase: int
    predicted_us: int
    measured_us: float
    steps: int

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_us / self.predicted_us if self.predicted_us else float("inf")

    def __str__(self) -> str:
        return (
            f"phase {self.phase} took {self.measured_us / 1e6:.3f} s over the last {self.steps} steps, "
            f"{self.predicted_us / 1e6:.3f} s were predicted: plan again"
        )


def rescaled(case: Case, ratios: Mapping[str, float]) -> Case:
    """Return the case with the times of some components multiplied, by name; memory and loading stay."""
    components = []
    for component in case.components:
        ratio = ratios.get(component.name, 1.0)
        times = {n: {m: round(t * ratio) for m, t in row.items()} for n, row in component.time_us.items()}
        components.append(replace(component, time_us=times))
    return replace(case, components=tuple(components))


class DriftMonitor:
    """Compares predicted and measured times of each phase, step by step.

    A phase drifts when ``patience`` steps in a row differ from the prediction by more than ``threshold``, all in the
    same direction. One step within it begins the count anew.
    """

    def __init__(self, predicted_us: Sequence[int], threshold: float = THRESHOLD, patience: int = PATIENCE) -> None:
        self._predicted = list(predicted_us)
        self._threshold = threshold
        self._patience = patience
        self._away: list[list[float]] = [[] for _ in self._predicted]

    def observe(self, measured_us: Sequence[float]) -> Drift | None:
        """Take the times of one step, by phase; return the phase that drifted most, None as long as none did.

        Raises:
            ValueError: the number of phases is not that of the prediction.
        """
        if len(measured_us) != len(self._predicted):
            raise ValueError(f"{len(self._predicted)} phases were predicted and {len(measured_us)} measured")
        for phase, (predicted, measured) in enumerate(zip(self._predicted, measured_us, strict=True)):
            self._note(phase, predicted, measured)
        found = [
            Drift(phase, self._predicted[phase], sum(times[-self._patience :]) / self._patience, self._patience)
            for phase, times in enumerate(self._away)
            if len(times) >= self._patience
        ]
        return max(found, key=lambda drift: abs(drift.measured_us - drift.predicted_us), default=None)

    def _note(self, phase: int, predicted: int, measured: float) -> None:
        times = self._away[phase]
        if abs(measured - predicted) <= self._threshold * predicted:
            times.clear()
            return
        if times and (times[-1] > predicted) != (measured > predicted):
            times.clear()
        times.append(measured)
        del times[: -self._patience]
