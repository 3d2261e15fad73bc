"""The planner: is it exact, how long does it search, and what does a wrong profile cost.

Optimality: random cases, 3 components on 16 devices to 5 on 8, with smooth, jagged and tied tables, missing entries and
scarce memory, against an enumeration of all plans that shares no code with the planner (brute_force.py beside the
planner's tests). A case counts as equal when the plans of all three classes are, ties included. Beside it stands a rule
that keeps one cheapest result for each sub-graph and number of devices, splits only up to n - 2 devices, and takes a
split inside a sequence for no plan: what RLinf's script for automatic placement does, written anew from its description
and given this cost model (the script itself is not part of the distribution rlinf 0.3.0). It knows chains and no
memory, so it is compared on smooth chains of three without memory alone, by the time that it predicts.

Search time: three stages profiled on every number of devices, with one chunk and with five, memory ample and scarce.

Noise: a plan for times that are wrong by up to +-x, each component by its own factor, is judged by the true times;
regret is what it loses to the true best. The cases scale differently well with devices, so that all classes win some.

Exits with 1 when a case differs or three stages over 4,096 devices take over a second of processor time.

    python benchmarks/planner.py [--cases 40] [--noise-cases 60] [--largest 4096] [--json FILE]

`--cases 2000` takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from plugrl.runtime.planner import evaluate, solve

HELPERS = Path(__file__).resolve().parents[1] / "core" / "tests" / "runtime" / "planner"
SHAPES = ((3, 16), (3, 16), (4, 12), (5, 8))
NOISE = (0.05, 0.1, 0.2, 0.3, 0.5)
FIVE = [16, 64, 256, 1024, 4096]
SEARCHES = {
    "one_chunk_s": ([64], 200_000),
    "scarce_s": ([64], 12_500),
    "five_chunks_s": (FIVE, 200_000),
    "five_scarce_s": (FIVE, 12_500),
}
"""Chunks and MiB of each device."""
SEARCH_LIMIT_S = 1.0


def load(name: str) -> ModuleType:
    """A helper of the planner's tests."""
    spec = importlib.util.spec_from_file_location(name, HELPERS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------------- optimality
def measure_optimality(count: int) -> list[dict[str, Any]]:
    """Compare with the enumeration, one row for each shape of cases."""
    random_case, brute_force = load("random_cases").random_case, load("brute_force").BruteForce
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for number in range(count):
        components, devices = SHAPES[number % len(SHAPES)]
        empty = {"components": components, "devices": devices, "cases": 0, "equal": 0, "broken": 0,
                 "planner_s": 0.0, "enumeration_s": 0.0}  # fmt: skip
        row = rows.setdefault((components, devices), empty)
        case = random_case(50_000 + number, components=components, devices=devices, chunks=2)
        begin = time.process_time()
        found = solve(case)
        middle = time.process_time()
        expected = brute_force(case).result()
        row["planner_s"] += middle - begin
        row["enumeration_s"] += time.process_time() - middle
        row["cases"] += 1
        row["equal"] += found == expected
        plans = [plan for plan in found["by_mode"].values() if "infeasible" not in plan]
        row["broken"] += sum(not evaluate(case, plan)["ok"] for plan in plans)
    return list(rows.values())


def measure_one_best(count: int) -> dict[str, Any]:
    """Compare with the rule that keeps one result for each sub-graph, on chains without memory."""
    gaps, nothing = [], 0
    for seed in range(count):
        case = scaling_case(seed, devices=2 + seed % 15, chunks=[1], capacity=10**6)
        found = solve(case)
        kept = one_best(case, 0, len(case["components"]), case["devices"])
        if kept is None:
            nothing += 1
        else:
            gaps.append(total(case, kept) / max(1, found["by_mode"][found["best"]]["time_us"]) - 1)
    worse = [gap for gap in gaps if gap > 0]
    return {"cases": len(gaps) + nothing, "optimal": len(gaps) - len(worse), "no_plan": nothing,
            "mean_gap": statistics.mean(worse) if worse else 0.0, "largest_gap": max(worse, default=0.0)}  # fmt: skip


def one_best(case: dict[str, Any], first: int, end: int, n: int) -> tuple[int, int, bool] | None:
    """Return (sum of the stage times of a chunk, the largest of them, whether it is split), the cheapest one."""
    chunk = str(case["chunks"][0])
    if end - first == 1:
        taken = case["components"][first]["time_us"].get(str(n), {}).get(chunk)
        return None if taken is None else (taken, taken, False)
    best = None
    for cut in range(first + 1, end):
        a, b = one_best(case, first, cut, n), one_best(case, cut, end, n)
        if a and b and not a[2] and not b[2]:
            best = cheaper(case, best, (a[0] + b[0], a[0] + b[0], False))
        for k in range(1, n - 1):
            a, b = one_best(case, first, cut, k), one_best(case, cut, end, n - k)
            if a and b:
                best = cheaper(case, best, (a[0] + b[0], max(a[1], b[1]), True))
    return best


def cheaper(case: dict[str, Any], a: tuple[int, int, bool] | None, b: tuple[int, int, bool]) -> tuple[int, int, bool]:
    """Return the one that takes less."""
    return b if a is None or total(case, b) < total(case, a) else a


def total(case: dict[str, Any], kept: tuple[int, int, bool]) -> int:
    """The time of an iteration."""
    return kept[0] + (case["items"] // case["chunks"][0] - 1) * kept[1]


# -------------------------------------------------------------------------------------------------------- search time
def large_case(devices: int, chunks: list[int], capacity: int) -> dict[str, Any]:
    """Three stages profiled on every number of devices: sampling scales worst, training shards its state."""
    components = []
    for name, fixed, slope, weights, states in (
        ("rollout", 30_000, 20_000, 9000, 0),
        ("inference", 10_000, 5000, 3000, 0),
        ("actor", 20_000, 40_000, 2000, 60_000),
    ):
        counts = range(1, devices + 1)
        components.append(
            {
                "name": name,
                "time_us": {str(n): {str(m): fixed + slope * m // n for m in chunks} for n in counts},
                "resident_mib": {str(n): weights + states // n for n in counts},
                "work_mib": {str(n): {str(m): 500 + 20 * m // n for m in chunks} for n in counts},
                "onload_us": {str(n): 10 * (weights + states // n) for n in counts},
                "offload_us": {str(n): 8 * (weights + states // n) for n in counts},
            }
        )
    return {"devices": devices, "items": 4096, "chunks": chunks, "capacity_mib": capacity, "components": components,
            "edges": [["rollout", "inference"], ["inference", "actor"]]}  # fmt: skip


def measure_search(largest: int) -> list[dict[str, Any]]:
    """Processor seconds of one search, reading the case included: the better of two."""
    rows = []
    devices = 8
    while devices <= largest:
        row: dict[str, Any] = {"devices": devices}
        for key, (chunks, capacity) in SEARCHES.items():
            case = large_case(devices, chunks, capacity)
            taken = []
            for _ in range(2):
                begin = time.process_time()
                solve(case)
                taken.append(time.process_time() - begin)
            row[key] = min(taken)
        rows.append(row)
        devices *= 2 if devices < 64 else 8 if devices < 512 else 2
    return rows


# -------------------------------------------------------------------------------------------------------------- noise
def measure_noise(count: int) -> list[dict[str, Any]]:
    """Regret of plans for wrong times, on smooth profiles."""
    cases = [scaling_case(seed, devices=8, chunks=[4, 16, 64], capacity=40_000) for seed in range(count)]
    truths = [solve(case) for case in cases]
    rows = []
    for noise in NOISE:
        regrets = []
        for seed, (case, truth) in enumerate(zip(cases, truths, strict=True)):
            draw = random.Random(1000 * seed + int(100 * noise))
            believed = json.loads(json.dumps(case))
            for component in believed["components"]:
                factor = 1 + draw.uniform(-noise, noise)
                for row in component["time_us"].values():
                    row.update({m: round(value * factor) for m, value in row.items()})
            plan = solve(believed)
            chosen = plan["by_mode"][plan["best"]]
            best = truth["by_mode"][truth["best"]]["time_us"]
            regrets.append(evaluate(case, chosen)["time_us"] / best - 1)
        regrets.sort()
        same = sum(regret == 0 for regret in regrets) / len(regrets)
        rows.append({"noise": noise, "median": statistics.median(regrets), "p90": regrets[int(0.9 * len(regrets))],
                     "largest": regrets[-1], "no_regret": same})  # fmt: skip
    return rows


def scaling_case(seed: int, devices: int, chunks: list[int], capacity: int) -> dict[str, Any]:
    """A chain of three components of different weight that scale differently well with devices; 64 items."""
    draw = random.Random(seed)
    components = []
    for name in ("rollout", "inference", "actor"):
        fixed, slope, exponent = draw.randint(500, 5000), draw.randint(5_000, 100_000), draw.uniform(0.3, 1.0)
        weights, states = draw.randint(2_000, 10_000), draw.randint(0, 20_000)
        counts = range(1, devices + 1)
        resident = {str(n): weights + states // n for n in counts}
        components.append(
            {
                "name": name,
                "time_us": {str(n): {str(m): round(fixed + slope * m / n**exponent) for m in chunks} for n in counts},
                "resident_mib": resident,
                "work_mib": {str(n): {str(m): 500 + 50 * m // n for m in chunks} for n in counts},
                "onload_us": {n: 10 * mib for n, mib in resident.items()},
                "offload_us": {n: 8 * mib for n, mib in resident.items()},
            }
        )
    edges = [["rollout", "inference"], ["inference", "actor"]]
    return {"devices": devices, "items": 64, "chunks": chunks, "capacity_mib": capacity, "components": components,
            "edges": edges}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- report
def main() -> int:
    """Measure, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--noise-cases", type=int, default=60)
    parser.add_argument("--largest", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    optimality = measure_optimality(options.cases)
    print("components  devices  cases  equal  broken rules  planner s/case  enumeration s/case")
    for row in optimality:
        each = [row[key] / row["cases"] for key in ("planner_s", "enumeration_s")]
        print(f"{row['components']:>10}  {row['devices']:>7}  {row['cases']:>5}  {row['equal']:>5}  "
              f"{row['broken']:>12}  {each[0]:>14.3f}  {each[1]:>18.3f}")  # fmt: skip
    kept = measure_one_best(5 * options.cases)
    print(f"\none result for each sub-graph, chains without memory: {kept['optimal']} of {kept['cases']} optimal, "
          f"{kept['no_plan']} without a plan though there is one, the others {kept['mean_gap']:.1%} slower on average, "
          f"{kept['largest_gap']:.1%} at most")  # fmt: skip
    search = measure_search(options.largest)
    print("\ndevices  one chunk s  scarce memory s  five chunks s  five, scarce s")
    for row in search:
        times = [row[key] for key in SEARCHES]
        print(f"{row['devices']:>7}  {times[0]:>11.3f}  {times[1]:>15.3f}  {times[2]:>13.3f}  {times[3]:>14.3f}")
    noise = measure_noise(options.noise_cases)
    print("\nnoise   no regret  median regret    p90   largest")
    for row in noise:
        print(f"+-{row['noise']:>4.0%}  {row['no_regret']:>9.0%}  {row['median']:>13.2%}  {row['p90']:>5.1%}  "
              f"{row['largest']:>8.1%}")  # fmt: skip
    if options.json:
        found = {"optimality": optimality, "one_best": kept, "search": search, "noise": noise}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    exact = all(row["equal"] == row["cases"] and row["broken"] == 0 for row in optimality)
    quick = all(row[key] <= SEARCH_LIMIT_S for row in search for key in SEARCHES)
    return 0 if exact and quick else 1


if __name__ == "__main__":
    sys.exit(main())
