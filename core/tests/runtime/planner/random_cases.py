"""Random cases of the planner's format: smooth and jagged tables, missing entries, scarce memory, many ties."""

from __future__ import annotations

import random
from typing import Any

Case = dict[str, Any]
NAMES = ("rollout", "reward", "inference", "critic", "actor", "extra")


def random_case(
    seed: int, *, components: int | None = None, devices: int | None = None, chunks: int | None = None
) -> Case:
    """A case that depends on the seed alone; what is given is not drawn."""
    draw = random.Random(seed)
    count = components or draw.randint(1, 4)
    devices = devices or draw.randint(1, 6)
    items = draw.choice([8, 12, 24, 32])
    divisors = [m for m in range(1, items + 1) if items % m == 0]
    chosen = sorted(draw.sample(divisors, min(len(divisors), chunks or draw.randint(1, 3))))
    kind = draw.choice(["smooth", "smooth", "jagged", "ties"])
    density = draw.choice([1.0, 1.0, 0.8, 0.5])
    listed = [_component(draw, NAMES[i], devices, chosen, kind, density) for i in range(count)]
    pairs = [(u, v) for v in range(count) for u in range(v)]
    edges = [[NAMES[u], NAMES[v]] for u, v in pairs if draw.random() < (0.7 if u == v - 1 else 0.2)]
    largest = sum(max(c["resident_mib"].values(), default=0) for c in listed)
    return {
        "kind": "plan",
        "devices": devices,
        "items": items,
        "chunks": chosen,
        "capacity_mib": int(largest * draw.choice([0.4, 0.6, 0.8, 1.0, 1.2, 3.0])),
        "components": listed,
        "edges": edges,
    }


def random_plan(case: Case, draw: random.Random) -> dict[str, Any]:
    """A plan that covers the case and respects its structure most of the time; it may break later rules."""
    left = [component["name"] for component in case["components"]]
    phases = []
    while left:
        taken, left = (cut := draw.randint(1, len(left)), left[:cut], left[cut:])[1:]
        stages: list[list[str]] = []
        for name in taken:
            if stages and draw.random() < 0.4:
                draw.choice(stages).append(name)
            else:
                stages.append([name])
        most = max(1, case["devices"] // len(stages))
        phases.append(
            {
                "chunk": draw.choice(case["chunks"]),
                "stages": [{"components": names, "devices": draw.randint(1, most)} for names in stages],
            }
        )
    names = [component["name"] for component in case["components"]]
    return {"phases": phases, "swapped": [name for name in names if draw.random() < 0.4]}


def _component(
    draw: random.Random, name: str, devices: int, chunks: list[int], kind: str, density: float
) -> dict[str, Any]:
    pairs = {n: [m for m in chunks if draw.random() < density] for n in range(1, devices + 1)}
    pairs = {n: given for n, given in pairs.items() if given}
    fixed, slope, weights, states = (draw.randint(1, 400) for _ in range(4))

    def number(low: int, high: int) -> int:
        return draw.randint(low, high) if kind != "ties" else draw.choice([0, 1, 2, 4])

    def time(n: int, m: int) -> int:
        return fixed + slope * m // n if kind == "smooth" else number(1, 900)

    def resident(n: int) -> int:
        return weights + states // n if kind == "smooth" else number(0, 400)

    return {
        "name": name,
        "time_us": {str(n): {str(m): time(n, m) for m in given} for n, given in pairs.items()},
        "resident_mib": {str(n): resident(n) for n in pairs},
        "work_mib": {str(n): {str(m): number(0, 60) for m in given} for n, given in pairs.items()},
        "onload_us": {str(n): number(0, 200) for n in pairs},
        "offload_us": {str(n): number(0, 200) for n in pairs},
    }
