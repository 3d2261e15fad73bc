"""Loops of an environment and a policy: the best arrangement against trying all, and their collapse into a case."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import Any

import pytest

from plugrl.errors import ConfigError
from plugrl.runtime.planner import collapse, evaluate, loop_time, make_artefact, simulate, solve, solve_loop


def side(draw: random.Random, devices: int, sizes: list[int], density: float) -> dict[str, Any]:
    """Tables of one side."""
    pairs = {n: [q for q in sizes if draw.random() < density] for n in range(1, devices + 1)}
    pairs = {n: given for n, given in pairs.items() if given}
    factor = {n: 2 if n == 1 else 1 for n in pairs}
    return {
        "time_us": {str(n): {str(q): draw.randint(1, 9) * factor[n] for q in given} for n, given in pairs.items()},
        "resident_mib": {str(n): draw.randint(1, 6) for n in pairs},
        "work_mib": {str(n): {str(q): draw.randint(0, 3) for q in given} for n, given in pairs.items()},
    }


def loop_case(seed: int) -> dict[str, Any]:
    """A random loop, small enough to try everything."""
    draw = random.Random(seed)
    devices, items = draw.randint(1, 5), 12
    slices = sorted(draw.sample([1, 2, 3, 4, 6], draw.randint(1, 4)))
    sizes = sorted({items, *(items // count for count in slices)})
    density = draw.choice([1.0, 0.8, 0.4])
    return {
        "kind": "loop", "devices": devices, "items": items, "rounds": draw.randint(1, 5), "slices": slices,
        "capacity_mib": draw.randint(4, 16), "env": side(draw, devices, sizes, density),
        "policy": side(draw, devices, sizes, density),
    }  # fmt: skip


def all_arrangements(case: dict[str, Any], capacity: float) -> list[tuple[Any, ...]]:
    """Every arrangement that fits, by the key that compares them."""
    env, policy, m, rounds = case["env"], case["policy"], case["items"], case["rounds"]
    found: list[tuple[Any, ...]] = []

    def entry(table: dict[str, Any], n: int, q: int) -> Any:
        return table.get(str(n), {}).get(str(q))

    for a in range(1, case["devices"] + 1):
        e, r = entry(env["time_us"], a, m), entry(policy["time_us"], a, m)
        if e is not None and r is not None:
            work = max(entry(env["work_mib"], a, m), entry(policy["work_mib"], a, m))
            if env["resident_mib"][str(a)] + policy["resident_mib"][str(a)] + work <= capacity:
                found.append((rounds * (e + r), 0, 1, a, a))
        for b in range(1, case["devices"] - a + 1):
            for count in case["slices"]:
                q = m // count
                e, r = entry(env["time_us"], a, q), entry(policy["time_us"], b, q)
                if e is None or r is None:
                    continue
                needs = [
                    side["resident_mib"][str(n)] + entry(side["work_mib"], n, q) for side, n in ((env, a), (policy, b))
                ]
                if max(needs) <= capacity:
                    found.append((play(e, r, count, rounds), 1, count, a + b, a))
    return found


def play(env: int, policy: int, slices: int, rounds: int) -> int:
    """The loop on a virtual clock: both sides serve the slices first come, first served."""
    events = [(0, number, "env", 0) for number in range(slices)]
    free = {"env": 0, "policy": 0}
    end = 0
    while events:
        ready, number, where, done = heappop(events)
        end = max(ready, free[where]) + (env if where == "env" else policy)
        free[where] = end
        if where == "env":
            heappush(events, (end, number, "policy", done))
        elif done + 1 < rounds:
            heappush(events, (end, number, "env", done + 1))
    return max(free.values())


def test_the_formula_of_a_loop_equals_the_clock() -> None:
    draw = random.Random(3)
    for _ in range(300):
        e, r, slices, rounds = draw.randint(0, 20), draw.randint(0, 20), draw.randint(1, 5), draw.randint(1, 6)
        assert loop_time(e, r, slices, rounds) == play(e, r, slices, rounds), (e, r, slices, rounds)


def test_the_best_arrangement_is_found_ties_included() -> None:
    seen = set()
    for seed in range(300):
        case = loop_case(seed)
        found = solve_loop(case)
        keys = all_arrangements(case, case["capacity_mib"])
        if not keys:
            reason = "memory" if all_arrangements(case, float("inf")) else "profile"
            assert found == {"infeasible": reason}, seed
            seen.add(reason)
            continue
        time, is_split, slices, devices, a = min(keys)
        where = {"env_devices": a, "policy_devices": devices - a} if is_split else {"devices": a}
        arrangement = "split" if is_split else "shared"
        assert found == {"arrangement": arrangement, **where, "slices": slices, "time_us": time}, seed
        seen.add(arrangement)
    assert seen == {"memory", "profile", "shared", "split"}


def cyclic_case(devices: int = 2, capacity: int = 100) -> dict[str, Any]:
    """An environment and a rollout that call each other, then an actor."""

    def component(name: str, sizes: dict[str, int], rows: int) -> dict[str, Any]:
        table = {str(n): {q: max(1, t // n) for q, t in sizes.items()} for n in range(1, devices + 1)}
        row = {str(n): rows for n in range(1, devices + 1)}
        return {"name": name, "time_us": table, "resident_mib": row, "work_mib": table, "onload_us": row,
                "offload_us": row}  # fmt: skip

    return {
        "devices": devices, "items": 8, "chunks": [4, 8], "capacity_mib": capacity,
        "components": [
            component("env", {"2": 6, "4": 8, "8": 12}, 10), component("rollout", {"2": 4, "4": 6, "8": 10}, 20),
            component("actor", {"4": 40, "8": 60}, 30),
        ],
        "edges": [["env", "rollout"], ["rollout", "env"], ["rollout", "actor"]],
        "loops": [{"env": "env", "policy": "rollout", "rounds": 3, "slices": [1, 2]}],
    }  # fmt: skip


def test_a_cycle_collapses_first_and_is_then_planned_like_any_component() -> None:
    case = cyclic_case()
    collapsed = collapse(case)
    assert [component.name for component in collapsed.case.components] == ["env+rollout", "actor"]
    assert collapsed.case.edges == ((0, 1),)
    loop = collapsed.case.components[0]
    for n in (1, 2):
        for m in (4, 8):
            alone = {
                "kind": "loop", "devices": n, "items": m, "rounds": 3, "slices": [1, 2], "capacity_mib": 100,
                "env": case["components"][0], "policy": case["components"][1],
            }  # fmt: skip
            assert loop.time_us[n][m] == solve_loop(alone)["time_us"]
    assert loop.resident_mib[1] == 30 and loop.onload_us[1] == 30, "on one device both share it"
    found = solve(case)
    assert found["best"] is not None
    for mode in ("temporal", "spatial"):
        plan = found["by_mode"][mode]
        assert evaluate(case, plan) == simulate(case, plan) == {"ok": True, "time_us": plan["time_us"], "mode": mode}
    assert make_artefact(case).loops["env+rollout"]["spatial"]["arrangement"] == "shared"


def test_memory_of_a_split_loop_is_that_of_its_larger_side() -> None:
    collapsed = collapse(cyclic_case(capacity=32))
    loop = collapsed.case.components[0]
    assert 1 not in loop.time_us, "both do not fit on one device"
    assert collapsed.arrangements["env+rollout"][2, 8].arrangement == "split"
    assert (loop.resident_mib[2], loop.onload_us[2]) == (20, 20)


def test_a_cycle_that_no_loop_declares_is_an_error_that_says_how() -> None:
    case = cyclic_case()
    del case["loops"]
    with pytest.raises(ConfigError, match=r"edges\[1\]: 'env' must stand after 'rollout'.*'loops'"):
        solve(case)


def test_a_loop_file_names_its_problems() -> None:
    case = {**loop_case(1), "slices": [5], "rounds": 0, "env": {"time_us": {"1": {"12": -2}}}}
    with pytest.raises(ConfigError) as caught:
        solve_loop(case)
    text = str(caught.value)
    slices = "slices[0]: 5 does not divide the 12 items."
    for wanted in ("rounds: must be", slices, "env.time_us.1.12:", "env.resident_mib"):
        assert wanted in text, text
