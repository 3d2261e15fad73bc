"""Planning again while a run is at work, when its steps stay away from what its plan predicts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plugrl.config.schema import FlowConfig, RunConfig
from plugrl.errors import ConfigError, one_line
from plugrl.runners.elastic import by_component
from plugrl.runners.plan_watch import PlanWatch
from plugrl.runners.rl_flow import owners_of
from plugrl.runners.step import Step
from plugrl.runtime.flow import FlowRecord
from plugrl.runtime.planner import (
    Drift,
    Plan,
    PlanArtefact,
    collapse,
    make_artefact,
    phase_costs,
    plan_to_keys,
    rescaled,
)
from plugrl.runtime.planner.describe import plan_text

if TYPE_CHECKING:
    from plugrl.runners.rl import RlRun

logger = logging.getLogger(__name__)

GAIN = 0.05
"""A plan takes over from the one in use when it is predicted to save more than this share of a step."""


@dataclass(frozen=True)
class _Change:
    """What a run goes over to: the plan, and the placement of the components that are asked for."""

    artefact: PlanArtefact
    placement: Mapping[str, object]
    flow: FlowConfig


class PlanFollower:
    """Keeps a run by its plan, and the plan by what the run measures.

    Each step is compared with the prediction. When a phase has stayed away from it, the times of the profile are
    corrected by what the last steps took and the search runs again. A plan that is clearly faster then takes over: its
    components move between steps, one after the other, while the flow follows from the placement alone; when all stand
    where they should, the flow is that of the new plan.

    Args:
        artefact: the plan that the run begins with.
        keep: takes each plan that has taken over, to write it down.
    """

    def __init__(self, artefact: PlanArtefact, keep: Callable[[PlanArtefact], None]) -> None:
        self._artefact = artefact
        self._keep = keep
        self._watch = _watch_of(artefact)
        self._drift: Drift | None = None
        self._change: _Change | None = None
        self._told = False

    @property
    def watch(self) -> PlanWatch | None:
        """What compares; None while the run goes over to another plan, and when it has none any more."""
        return self._watch

    def observe(self, run: RlRun, step: Step, record: FlowRecord) -> None:
        """Take note of a step that is done."""
        if self._watch is not None:
            self._drift = self._watch.observe(step, record, owners_of(run.stages))

    def between_steps(self, run: RlRun, number: int) -> None:
        """Plan again where it is due, or go on with a change of plans; ``number`` is the step that comes next."""
        if self._change is not None:
            self._go_on(run, self._change, number)
        elif self._drift is not None and self._watch is not None:
            drift, self._drift = self._drift, None
            self._plan_again(run, self._watch, drift, number)

    # ----------------------------------------------------------------- details
    def _plan_again(self, run: RlRun, watch: PlanWatch, drift: Drift, number: int) -> None:
        ratios = watch.ratios()
        case = rescaled(watch.case, ratios)
        found = make_artefact(case.to_dict())
        best = found.best
        assert best is not None, "the plan in use is one"
        now_us, best_us = (sum(cost.time_us for cost in phase_costs(case, plan)) for plan in (watch.plan, best))
        if best == watch.plan or now_us - best_us <= GAIN * now_us:
            self._watch = PlanWatch(case, watch.plan)
            logger.log(
                logging.INFO if self._told else logging.WARNING,
                "before step %d: %s. Planned again: the plan stays, now with %.3f s for a step.",
                number, drift, now_us / 1e6,
            )  # fmt: skip
            self._told = True
            return
        logger.warning(
            "before step %d: %s. Planned again: the run goes over to %s, %.3f s for a step and not %.3f s.",
            number, drift, plan_text(best), best_us / 1e6, now_us / 1e6,
        )  # fmt: skip
        placement, flow = keys_of(run.config, best)
        self._watch = None
        self._change = _Change(self._renewed(found, ratios, number), placement, flow)
        run.flow_changed(run.config.flow.model_copy(update={"phases": (), "chunk": None, "swapped": ()}))
        run.scaler.request_placement(self._change.placement)

    def _go_on(self, run: RlRun, change: _Change, number: int) -> None:
        if not run.scaler.is_idle:
            return
        self._change = None
        stand = by_component(run.config)
        away = [name for name, devices in change.placement.items() if str(stand.get(name)) != str(devices)]
        try:
            if away:
                raise ConfigError(f"{', '.join(away)} did not move")
            run.flow_changed(change.flow)
        except ConfigError as error:
            logger.warning(
                "before step %d: the new plan was not taken over: %s. The run goes on as it stands, without a plan.",
                number, one_line(error, with_type=False),
            )  # fmt: skip
            return
        self._artefact = change.artefact
        self._watch = _watch_of(change.artefact)
        self._keep(change.artefact)

    def _renewed(self, found: PlanArtefact, ratios: Mapping[str, float], number: int) -> PlanArtefact:
        """Return a plan with what the first one says of its configuration, and how its times were corrected."""
        first = self._artefact
        texts = ", ".join(f"{name} x {ratio:.2f}" for name, ratio in ratios.items())
        notes = [*first.profile.get("notes", ()), f"Times were corrected before step {number}: {texts}."]
        profile = {**first.profile, "notes": notes}
        return replace(found, versions=first.versions, configuration=first.configuration, profile=profile)


def keys_of(config: RunConfig, plan: Plan) -> tuple[dict[str, object], FlowConfig]:
    """Return the placement of a plan, and the flow of a configuration with what the plan says of it."""
    keys = plan_to_keys(plan)
    flow = FlowConfig.model_validate({**config.flow.model_dump(), "chunk": None, **keys["flow"]})
    return keys["cluster"]["component_placement"], flow


def _watch_of(artefact: PlanArtefact) -> PlanWatch | None:
    assert artefact.best is not None
    return PlanWatch(collapse(artefact.case).case, artefact.best)
