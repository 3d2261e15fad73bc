"""Collocated, disaggregated and hybrid on simulated components: which wins follows from cost curves and memory.

An environment, a rollout and an actor that only take time stand on 8 virtual devices; a step is 64 environments. The
rollout's and the actor's time falls with devices and batch. The simulator is one of three: `constant` takes the same
time whatever its batch (one launch on an accelerator), `linear` a time for each environment that devices share
(processor-bound), `falling` ever less for each environment the more there are. Memory lets all components stay on every
device, two of them, or barely the largest with one other. For each of the nine the planner gives the best plan of each
mode; each is run by the engine that runs training, in real time by sleeping, and on a virtual clock. Shown are
predicted and measured step time and bubble ratio, and whether the planner's pick was the fastest of the three when
measured. The loop of environment and policy, in 1, 2 and 4 slices on half of the devices each, stands below.

This compares modes of one system under one cost model. It says nothing about the speed of real components, nor of
others'. Exits with 1 when a measured time is more than 5 % off, a mode never comes first, or a pick was not fastest.

    python benchmarks/execution_modes.py [--scale 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from plugrl.config.schema import FlowConfig
from plugrl.runtime.flow import FlowRecord, arrange, loop_stages, run_flow, simulate
from plugrl.runtime.flow.stages import Item
from plugrl.runtime.planner import loop_time, solve
from plugrl.testing.simulated import flow_of_plan, nap

DEVICES, ENVIRONMENTS, CHUNKS = 8, 64, (8, 16, 32, 64)
CAPACITY_MIB = {"all three": 100_000, "two": 64_000, "barely": 48_000}
LIMIT = 0.05
CLOSE = 0.02
"""Modes whose predicted times differ by less than this are not told apart by a measurement."""

Curve = Callable[[int, int], float]
"""``(devices, environments) -> microseconds``."""

SIMULATORS: dict[str, Curve] = {
    "constant": lambda devices, batch: 40_000,
    "linear": lambda devices, batch: 8_000 * batch / devices,
    "falling": lambda devices, batch: 30_000 * batch**0.35 / devices**0.2,
}


@dataclass(frozen=True)
class Row:
    """A plan, predicted and measured; times in milliseconds of the case."""

    simulator: str
    fits: str
    mode: str
    picked: bool
    predicted_ms: float
    measured_ms: float
    predicted_bubble: float
    measured_bubble: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.measured_ms / self.predicted_ms - 1


def component(name: str, time: Curve, resident_mib: int, work_mib: int, move_us: int) -> dict[str, Any]:
    """Return a component of the planner's case."""
    counts = [str(n) for n in range(1, DEVICES + 1)]
    return {
        "name": name,
        "time_us": {n: {str(m): round(time(int(n), m)) for m in CHUNKS} for n in counts},
        "resident_mib": dict.fromkeys(counts, resident_mib),
        "work_mib": {n: dict.fromkeys(map(str, CHUNKS), work_mib) for n in counts},
        "onload_us": dict.fromkeys(counts, move_us),
        "offload_us": dict.fromkeys(counts, move_us),
    }


def case_of(simulator: str, capacity_mib: int) -> dict[str, Any]:
    """Return the planner's case of a simulator and a memory."""
    return {
        "kind": "plan",
        "devices": DEVICES,
        "items": ENVIRONMENTS,
        "chunks": list(CHUNKS),
        "capacity_mib": capacity_mib,
        "components": [
            component("env", SIMULATORS[simulator], 20_000, 1_000, 20_000),
            component("rollout", lambda n, m: 3_000 + 4_000 * m / n, 16_000, 4_000, 30_000),
            component("actor", lambda n, m: 5_000 + 6_000 * m / n, 40_000, 4_000, 80_000),
        ],
        "edges": [["env", "rollout"], ["rollout", "actor"]],
    }


def measure(simulator: str, fits: str, scale: float) -> list[Row]:
    """Run the best plan of each mode."""
    case = case_of(simulator, CAPACITY_MIB[fits])
    result = solve(case)
    rows = []
    for mode, plan in result["by_mode"].items():
        if "phases" not in plan:
            continue
        flow = flow_of_plan(case, plan)
        exact = flow.on_a_virtual_clock()
        assert exact.makespan <= plan["time_us"], "the engine takes longer than the cost model says"
        real = flow.in_real_time(scale * 1e-6)
        rows.append(row(simulator, fits, mode, mode == result["best"], exact, real, scale))
    return rows


def row(simulator: str, fits: str, mode: str, picked: bool, exact: FlowRecord, real: FlowRecord, scale: float) -> Row:
    """Put a prediction beside its measurement."""
    return Row(
        simulator, fits, mode, picked, exact.makespan / 1e3, real.makespan / scale * 1e3,
        exact.bubble_ratio, real.bubble_ratio,
    )  # fmt: skip


# ----------------------------------------------------------------- the loop of environment and policy
LOOP_ROUNDS, LOOP_SLICES = 6, (1, 2, 4)


def loop_parts(simulator: str) -> dict[str, Any]:
    """Return the times of an environment and a policy that call each other."""
    return {
        "env": component("env", lambda n, m: SIMULATORS[simulator](n, m) / 4, 20_000, 1_000, 0),
        "policy": component("policy", lambda n, m: 2_000 + 900 * m / n, 30_000, 4_000, 0),
    }


def measure_loop(simulator: str, scale: float) -> list[Row]:
    """Run the loop on half of the devices each, in every number of slices."""
    parts = loop_parts(simulator)
    half = str(DEVICES // 2)
    rows = []
    for slices in LOOP_SLICES:
        size = ENVIRONMENTS // slices
        cost = {name: parts[name]["time_us"][half][str(size)] for name in ("env", "policy")}
        exact, real = run_loop(cost, size, 0.0), run_loop(cost, size, scale * 1e-6)
        assert exact.makespan == loop_time(cost["env"], cost["policy"], slices=slices, rounds=LOOP_ROUNDS)
        rows.append(row(simulator, "loop", f"{slices} slices", False, exact, real, scale))
    best = min(rows, key=lambda one: one.predicted_ms)
    return [replace(one, picked=one is best) for one in rows]


def run_loop(cost: dict[str, int], size: int, seconds: float) -> FlowRecord:
    """Run a loop in real time, a microsecond taking ``seconds``, or on a virtual clock when that is 0."""

    def work(item: Item) -> None:
        nap(cost[item.stage.component] * seconds)

    specs = loop_stages(("env", lambda number: work), ("policy", lambda number: work), LOOP_ROUNDS, size)
    flow = arrange(specs, {"env": range(4), "policy": range(4, 8)}, FlowConfig(), ENVIRONMENTS)
    if not seconds:
        return simulate(flow.stages, flow.total, lambda item: cost[item.stage.component])
    return run_flow(flow.stages, flow.total)


# ----------------------------------------------------------------- the verdict
def problems(rows: list[Row]) -> list[str]:
    """Return what does not hold."""
    found = [
        f"{one.simulator}, {one.fits}, {one.mode}: measured {one.measured_ms:.1f} ms, predicted {one.predicted_ms:.1f}"
        for one in rows
        if abs(one.error) > LIMIT or abs(one.measured_bubble - one.predicted_bubble) > LIMIT
    ]
    groups: dict[tuple[str, str], list[Row]] = {}
    for one in rows:
        groups.setdefault((one.simulator, one.fits), []).append(one)
    for key, modes in groups.items():
        picked = next(one for one in modes if one.picked)
        fastest = min(modes, key=lambda one: one.measured_ms)
        if fastest is not picked and fastest.predicted_ms < picked.predicted_ms * (1 - CLOSE):
            found.append(f"{key}: picked {picked.mode}, but {fastest.mode} was faster")
    firsts = {one.mode for one in rows if one.picked}
    found += [f"{mode} never comes first" for mode in ("temporal", "spatial", "hybrid") if mode not in firsts]
    return found


def main() -> int:
    """Run all and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=4.0, help="seconds that a second of the case takes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rows = [one for name in SIMULATORS for fits in CAPACITY_MIB for one in measure(name, fits, arguments.scale)]
    rows += [one for name in SIMULATORS for one in measure_loop(name, 2 * arguments.scale)]
    print(f"{'simulator':10} {'memory':10} {'mode':10} {'predicted':>10} {'measured':>10} {'error':>7}  bubble")
    mark = "  <- picked"
    for one in rows:
        print(
            f"{one.simulator:10} {one.fits:10} {one.mode:10} {one.predicted_ms:7.1f} ms {one.measured_ms:7.1f} ms "
            f"{one.error:+7.1%}  {one.predicted_bubble:.3f} {one.measured_bubble:.3f}{mark if one.picked else ''}"
        )
    found = problems(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(one) for one in rows], "problems": found}, indent=1))
    for text in found:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
