"""Components that only take time, as a table of the planner says: for experiments with many devices on a small machine.

What they show is how plans compare under a cost model. They say nothing about the speed of real components.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plugrl.config.schema import FlowConfig
from plugrl.runtime.cancellation import raise_if_cancelled
from plugrl.runtime.flow import Arrangement, FlowRecord, Item, StageSpec, arrange, run_flow, simulate
from plugrl.runtime.placement.grammar import parse_placement
from plugrl.runtime.planner import Plan, plan_to_keys
from plugrl.runtime.worker import Worker

_NAP_S = 0.25


class SimulatedWorker(Worker):
    """A process that takes time when it is told to; one stands for a whole component, however many devices it has."""

    process_group = False

    def work(self, seconds: float) -> float:
        """Take so many seconds and return them."""
        nap(seconds)
        return seconds


@dataclass(frozen=True)
class SimulatedFlow:
    """A plan of a planner's case as a flow: ``cost`` gives the microseconds of each portion and of each transfer."""

    arrangement: Arrangement
    cost: Callable[[Item], int]

    def on_a_virtual_clock(self) -> FlowRecord:
        """Return when everything would run, in microseconds, exact."""
        flow = self.arrangement
        return simulate(flow.stages, flow.total, self.cost, flow.max_ahead)

    def in_real_time(self, seconds: float, work: Callable[[str, float], object] | None = None) -> FlowRecord:
        """Run it, a microsecond of the case taking ``seconds``; times of the result are in seconds.

        ``work`` takes the time of a component, given its name and the seconds; by default threads of the flow sleep.
        """
        flow, spend = self.arrangement, work or (lambda component, duration: nap(duration))
        moves = {(stage.transfer, stage.component): stage for stage in flow.stages if stage.transfer}

        def run(item: Item) -> None:
            spend(item.stage.component, self.cost(item) * seconds)

        transfers = {
            kind: lambda name, kind=kind: run(Item(moves[kind, name], 0, 0, flow.total)) for kind in ("load", "unload")
        }
        stages = [replace(stage, run=run) for stage in flow.stages]
        return run_flow(stages, flow.total, transfers=transfers, max_ahead=flow.max_ahead)


def flow_of_plan(case: Mapping[str, Any], plan: Mapping[str, Any]) -> SimulatedFlow:
    """Return the flow of a plan, by the keys that the planner writes and this package reads.

    ``case`` and ``plan`` are in the planner's JSON format.
    """
    keys = plan_to_keys(Plan.from_dict(dict(plan)))
    inputs = {part["name"]: tuple(u for u, v in case["edges"] if v == part["name"]) for part in case["components"]}
    specs = [StageSpec(name=name, component=name, run=_no_work, after=after) for name, after in inputs.items()]
    devices = {
        name: tuple(device for process in parse_placement(value, case["devices"]) for device in process)
        for name, value in keys["cluster"]["component_placement"].items()
    }
    placed = {name: devices[name] for name in inputs}
    flow = arrange(specs, placed, FlowConfig.model_validate(keys["flow"]), case["items"])
    tables = {part["name"]: part for part in case["components"]}

    def cost(item: Item) -> int:
        stage = item.stage
        table, count = tables[stage.component], str(len(stage.devices))
        if stage.transfer:
            return int(table["onload_us" if stage.transfer == "load" else "offload_us"][count])
        return int(table["time_us"][count][str(item.stop - item.start)])

    return SimulatedFlow(flow, cost)


def nap(seconds: float) -> None:
    """Sleep to the microsecond as far as the machine allows; ends early when the flow is cancelled."""
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        raise_if_cancelled()
        time.sleep(min(left, _NAP_S))


def _no_work(item: Item) -> None:
    """Replaced by what takes the time."""
