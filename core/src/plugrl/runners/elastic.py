"""Scaling the components of a run between its steps, as a command, the planner or a program asks for it."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError, PlugRLError, ScaleError, one_line, one_of
from plugrl.runners.components import check_sharing, engine_spec, explaining_shortage, place_components
from plugrl.runtime.elastic import ScaleReport, Scaling
from plugrl.runtime.group import WorkerGroup
from plugrl.tracking.control import ControlFolder, ScaleAnswer, ScaleRequest
from plugrl.workers.groups import RolloutGroup, TrainingGroup
from plugrl.workers.scaling import RolloutScaling, TrainerScaling

if TYPE_CHECKING:
    from plugrl.runners.rl import RlRun
    from plugrl.runtime.placement import ComponentPlacement

logger = logging.getLogger(__name__)

Reply = Callable[[ScaleAnswer], None]


@dataclass(frozen=True, kw_only=True)
class _Pending:
    request: ScaleRequest
    reply: Reply
    scaling: Scaling
    ranks: int


class Scaler:
    """Takes requests, starts the new workers beside the steps, and lets them take over between two steps.

    A request that fails is answered and logged; it is no failure of the run.
    """

    def __init__(self, run: RlRun, control: ControlFolder) -> None:
        self._run = run
        self._control = control
        self._asked: queue.SimpleQueue[ScaleRequest] = queue.SimpleQueue()
        self._pending: _Pending | None = None

    def request(self, component: str, devices: str, timeout_s: float = 600.0) -> None:
        """Ask for other devices, written as in ``cluster.component_placement``; any thread may. Returns at once."""
        self._asked.put(ScaleRequest(component=component, devices=devices, timeout_s=timeout_s))

    def request_placement(self, component_placement: Mapping[str, object], timeout_s: float = 600.0) -> list[str]:
        """Ask for what a new plan places elsewhere, as ``plan_to_keys`` of the planner gives it; returns the names.

        It is for whoever plans again when measurements drift. The components go one after the other.
        """
        now = by_component(self._run.config)
        wanted = by_component(with_placements(self._run.config, component_placement))
        names = [
            name
            for name in self._run.components.devices
            if name in wanted and str(wanted[name]) != str(now.get(name))
        ]
        for name in names:
            self.request(name, str(wanted[name]), timeout_s)
        return names

    @property
    def is_idle(self) -> bool:
        """Whether nothing that a program asked for is under way or waits."""
        return self._pending is None and self._asked.empty()

    def between_steps(self, number: int) -> ScaleReport | None:
        """Do what is due before a step; returns what a scaling that is now done took."""
        if self._pending is None:
            self._take()
        pending = self._pending
        if pending is None or not pending.scaling.is_created:
            return None
        self._pending = None
        component = pending.request.component
        try:
            with self._run.residency.resting():
                report = pending.scaling.finish()
        except ScaleError as error:
            self._fail(pending.reply, component, error)
            if not error.rolled_back:
                self._run.devices_changed(component)
            return None
        self._run.devices_changed(component)
        self._run.config = with_placement(self._run.config, component, pending.request.devices)
        text = (
            f"{component}: {pending.ranks} -> {len(self._run.components.devices[component])} ranks before step "
            f"{number}; training stood still for {report.stall_s:.2f} s"
        )
        print(text, flush=True)
        pending.reply(ScaleAnswer(state="done", message=text))
        return report

    def close(self) -> None:
        """Give up what is under way, and refuse what is still asked for."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.scaling.cancel()
            pending.reply(ScaleAnswer(state="failed", message="training ended first"))
        while (item := self._next()) is not None:
            item[1](ScaleAnswer(state="failed", message="training ended first"))

    # ----------------------------------------------------------------- details
    def _take(self) -> None:
        found = self._next()
        if found is None:
            return
        request, reply = found
        try:
            placed = self._check(request)
            scaling = Scaling(self._plan(request.component, placed), timeout=request.timeout_s)
            scaling.begin()
        except PlugRLError as error:
            self._fail(reply, request.component, error)
            return
        ranks = self._group(request.component).group.size
        reply(ScaleAnswer(state="creating", message=f"{request.component}: new workers start on {request.devices}"))
        self._pending = _Pending(request=request, reply=reply, scaling=scaling, ranks=ranks)

    def _next(self) -> tuple[ScaleRequest, Reply] | None:
        try:
            return self._asked.get_nowait(), lambda answer: None
        except queue.Empty:
            found = self._control.take()
        if found is None:
            return None
        name, request = found
        return request, lambda answer: self._control.answer(name, answer)

    def _fail(self, reply: Reply, component: str, error: PlugRLError) -> None:
        logger.warning("%s was not scaled: %s", component, one_line(error, with_type=False))
        reply(ScaleAnswer(state="failed", message=str(error)))

    def _group(self, name: str) -> TrainingGroup | RolloutGroup:
        """Return a running component. Raises ConfigError for any other name."""
        known: Mapping[str, TrainingGroup | RolloutGroup | None] = {
            "actor": self._run.components.actor,
            "rollout": self._run.components.rollout,
            "ref": self._run.components.ref,
            "critic": self._run.components.critic,
        }
        group = known.get(name)
        if group is None:
            running = one_of(other for other, one in known.items() if one is not None)
            raise ConfigError(f"No component {name!r} runs here; there are: {running}.")
        return group

    def _check(self, request: ScaleRequest) -> ComponentPlacement:
        """Return where the component is to run. Raises ConfigError for all that a start would refuse."""
        run, name = self._run, request.component
        session = self._group(name).group.session
        config = with_placement(run.config, name, request.devices)
        with explaining_shortage(session):
            placed = place_components(config, (name,), session.layout.nodes).components[name]
        devices = {**run.components.devices, name: placed.one_device_each}
        check_sharing(devices, session.platform)
        run.check_devices(devices)
        return placed

    def _plan(self, name: str, placed: ComponentPlacement) -> TrainerScaling | RolloutScaling:
        run = self._run
        own = set(placed.one_device_each)
        shares = any(own & set(ranks) for other, ranks in run.components.devices.items() if other != name)
        group = self._group(name)
        if isinstance(group, RolloutGroup):
            kwargs = {"shares_device": shares}
            return RolloutScaling(group, lambda old: old.successor(placement=placed, kwargs=kwargs))
        spec = engine_spec(run.config, name, run.plan.total_steps, None, shares)  # type: ignore[arg-type]

        def launch(old: WorkerGroup) -> WorkerGroup:
            return old.successor(placement=placed, args=(spec,))

        return TrainerScaling(group, launch)


def with_placement(config: RunConfig, component: str, devices: str) -> RunConfig:
    """Return the configuration with one component on other devices."""
    return with_placements(config, {component: devices})


def with_placements(config: RunConfig, component_placement: Mapping[str, object]) -> RunConfig:
    """Return the configuration with some components elsewhere, each under a key of its own."""
    placed = by_component(config) | _by_component(component_placement)
    cluster = config.cluster.model_copy(update={"component_placement": placed})
    return config.model_copy(update={"cluster": cluster})


def by_component(config: RunConfig) -> dict[str, object]:
    """Return the placement of each component that has one."""
    return _by_component(config.cluster.component_placement)


def _by_component(given: Mapping[str, object]) -> dict[str, object]:
    return {name.strip(): value for key, value in given.items() for name in str(key).split(",")}
