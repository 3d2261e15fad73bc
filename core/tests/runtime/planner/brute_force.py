"""The best plans by enumeration, from the rules of the cost model alone: nothing of the planner is used.

Every order of phases, every cut into stages, every chunk, every number of devices and every set of swapped components
is tried. The time of a pipeline comes from the recurrence of its finish times, not from a formula. ``exhaustive`` tries
literally all; without it, ways to run a phase that are worse in everything than another way are left out, and a plan is
given up as soon as it is slower than the best one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

MODES = ("temporal", "spatial", "hybrid")


class BruteForce:
    """The optimum of each class of one case, and why a class has none."""

    def __init__(self, case: dict[str, Any], exhaustive: bool = False) -> None:
        self.case = case
        self.exhaustive = exhaustive
        self.components = case["components"]
        index = {component["name"]: i for i, component in enumerate(self.components)}
        self.edges = {(index[u], index[v]) for u, v in case["edges"]}
        self.before = [{u for u, v in self.edges if v == i} for i in range(len(self.components))]
        self.all = frozenset(range(len(self.components)))
        self.best: dict[str, tuple[Any, ...]] = {}
        self.capacity = case["capacity_mib"]
        self.unloaded: dict[frozenset[int], list[dict[str, Any]]] = {}
        self.ways: dict[tuple[frozenset[int], frozenset[int]], list[dict[str, Any]]] = {}

    def result(self) -> dict[str, Any]:
        """The result in the format of the cost model."""
        by_mode: dict[str, Any] = {}
        for swapped in _subsets(self.all):
            self._extend(swapped, frozenset(), [])
        for mode in MODES:
            by_mode[mode] = self._plan(self.best[mode]) if mode in self.best else {"infeasible": self._reason(mode)}
        ranked = [(key[0], MODES.index(mode)) for mode, key in self.best.items()]
        return {"best": MODES[min(ranked)[1]] if ranked else None, "by_mode": by_mode}

    def _extend(self, swapped: frozenset[int], done: frozenset[int], phases: list[dict[str, Any]]) -> None:
        if done == self.all:
            self._consider(swapped, phases)
            return
        for group in _subsets(self.all - done):
            if not group or any(not self.before[i] <= done | group for i in group):
                continue
            for way in self._ways(group, swapped):
                taken = [*phases, way]
                held = sum(other["held"] for other in taken)
                if any(other["need"] + held - other["held"] > self.capacity for other in taken):
                    continue
                if self.exhaustive or not self._is_slower(taken, done | group):
                    self._extend(swapped, done | group, taken)

    def _is_slower(self, phases: list[dict[str, Any]], done: frozenset[int]) -> bool:
        """Whether the plan is slower already than the best of every class that it can still be in."""
        if len(phases) == 1 and done == self.all:
            possible = MODES
        else:
            possible = ("hybrid",) if any(len(phase["stages"]) > 1 for phase in phases) else ("temporal", "hybrid")
        time = sum(phase["time"] for phase in phases)
        return all(mode in self.best and time > self.best[mode][0] for mode in possible)

    def _consider(self, swapped: frozenset[int], phases: list[dict[str, Any]]) -> None:
        stages = [stage for phase in phases for stage in phase["stages"]]
        if len(stages) == len(phases):
            mode = "temporal"
        elif len(phases) == 1 and all(len(stage) == 1 for stage in stages):
            mode = "spatial"
        else:
            mode = "hybrid"
        where = {}
        for p, phase in enumerate(phases):
            for s, (stage, n) in enumerate(zip(phase["stages"], phase["devices"], strict=True)):
                for i in stage:
                    where[i] = (p, s, n, -phase["chunk"], int(i in swapped))
        key = (
            sum(phase["time"] for phase in phases),
            len(phases),
            len(swapped),
            sum(sum(phase["devices"]) for phase in phases),
            tuple(number for i in sorted(where) for number in where[i]),
            [(phase["chunk"], phase["stages"], phase["devices"]) for phase in phases],
            sorted(swapped),
        )
        if mode not in self.best or key[:5] < self.best[mode][:5]:
            self.best[mode] = key

    def _plan(self, key: tuple[Any, ...]) -> dict[str, Any]:
        names = [component["name"] for component in self.components]
        stages = [list(zip(stages, devices, strict=True)) for _, stages, devices in key[5]]
        if len([1 for phase in stages for _ in phase]) == len(stages):
            mode = "temporal"
        else:
            alone = all(len(stage) == 1 for phase in stages for stage, _ in phase)
            mode = "spatial" if len(stages) == 1 and alone else "hybrid"
        return {
            "time_us": key[0],
            "mode": mode,
            "phases": [
                {"chunk": chunk, "stages": [{"components": [names[i] for i in s], "devices": n} for s, n in phase]}
                for (chunk, _, _), phase in zip(key[5], stages, strict=True)
            ],
            "swapped": [names[i] for i in key[6]],
        }

    def _ways(self, group: frozenset[int], swapped: frozenset[int]) -> list[dict[str, Any]]:
        """Every way to run a phase, the best first."""
        out = group & swapped
        if (group, out) not in self.ways:
            if group not in self.unloaded:
                self.unloaded[group] = [way for way in self._every_way(group) if way["need"] <= self.capacity]
            ways = [self._with_loading(way, out) for way in self.unloaded[group]]
            ways.sort(key=lambda way: (way["time"], sum(way["devices"]), way["vector"]))
            self.ways[group, out] = ways if self.exhaustive else _not_worse(ways)
        return self.ways[group, out]

    def _every_way(self, group: frozenset[int]) -> Iterator[dict[str, Any]]:
        for stages in _cuts(sorted(group)):
            if len(stages) == 1 and len(group) > 1:
                continue
            order = _sorted_stages(stages, self.edges)
            if order is None:
                continue
            for chunk in self.case["chunks"]:
                for devices in product(range(1, self.case["devices"] + 1), repeat=len(stages)):
                    if sum(devices) <= self.case["devices"] and self._is_profiled(stages, devices, chunk):
                        yield self._way(stages, order, chunk, devices)

    def _is_profiled(self, stages: Any, devices: Any, chunk: int) -> bool:
        return all(
            str(chunk) in self.components[i]["time_us"].get(str(n), {})
            for stage, n in zip(stages, devices, strict=True)
            for i in stage
        )

    def _way(self, stages: Any, order: list[int], chunk: int, devices: Any) -> dict[str, Any]:
        m = str(chunk)
        need = []
        for stage, n in zip(stages, map(str, devices), strict=True):
            mine = [self.components[i] for i in stage]
            need.append(sum(c["resident_mib"][n] for c in mine) + max(c["work_mib"][n][m] for c in mine))
        where = {i: (s, devices[s], -chunk) for s, stage in enumerate(stages) for i in stage}
        return {
            "stages": stages,
            "devices": devices,
            "chunk": chunk,
            "pipe": self._pipe(stages, order, chunk, devices),
            "need": max(need),
            "vector": tuple(where[i] for i in sorted(where)),
            "kind": (len(stages) > 1, all(len(stage) == 1 for stage in stages)),
        }

    def _with_loading(self, way: dict[str, Any], out: frozenset[int]) -> dict[str, Any]:
        load, unload, held = [], [], []
        for stage, n in zip(way["stages"], map(str, way["devices"]), strict=True):
            load.append(sum(self.components[i]["onload_us"][n] for i in stage if i in out))
            unload.append(sum(self.components[i]["offload_us"][n] for i in stage if i in out))
            held.append(sum(self.components[i]["resident_mib"][n] for i in stage if i not in out))
        return {**way, "time": max(load) + way["pipe"] + max(unload), "held": max(held)}

    def _pipe(self, stages: Any, order: list[int], chunk: int, devices: Any) -> int:
        """The finish time of the last chunk: a stage begins one when it and those that feed it are done."""
        times = [
            sum(self.components[i]["time_us"][str(n)][str(chunk)] for i in stage)
            for stage, n in zip(stages, devices, strict=True)
        ]
        feeds = [[q for q in order if q != s and self._feeds(stages[q], stages[s])] for s in range(len(stages))]
        finish = [0] * len(stages)
        for _ in range(self.case["items"] // chunk):
            for s in order:
                finish[s] = max([finish[s], *(finish[q] for q in feeds[s])]) + times[s]
        return max(finish)

    def _feeds(self, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
        return any((u, v) in self.edges for u in first for v in second)

    def _reason(self, mode: str) -> str:
        count, devices = len(self.components), self.case["devices"]
        if count == 1 and mode != "temporal" or count == 2 and mode == "hybrid":
            return "structure"
        if mode == "spatial" and count > devices or mode == "hybrid" and devices == 1:
            return "devices"
        roomy = BruteForce({**self.case, "capacity_mib": float("inf")})
        roomy._extend(frozenset(), frozenset(), [])
        return "memory" if mode in roomy.best else "profile"


def _not_worse(ways: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for way in ways:
        same = [other for other in kept if other["kind"] == way["kind"]]
        if not any(other["held"] <= way["held"] and other["need"] <= way["need"] for other in same):
            kept.append(way)
    return kept


def _subsets(items: Any) -> Iterator[frozenset[int]]:
    listed = sorted(items)
    for bits in product((False, True), repeat=len(listed)):
        yield frozenset(item for item, taken in zip(listed, bits, strict=True) if taken)


def _cuts(items: list[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every partition, its parts by their smallest member."""
    if not items:
        yield ()
        return
    for rest in _cuts(items[:-1]):
        last = items[-1]
        for i in range(len(rest)):
            yield (*rest[:i], (*rest[i], last), *rest[i + 1 :])
        yield (*rest, (last,))


def _sorted_stages(stages: Any, edges: set[tuple[int, int]]) -> list[int] | None:
    """An order of the stages in which each stands after those that feed it, None if there is none."""
    order: list[int] = []
    while len(order) < len(stages):
        free = [
            s for s in range(len(stages))
            if s not in order and all(
                q in order or q == s or not any((u, v) in edges for u in stages[q] for v in stages[s])
                for q in range(len(stages))
            )
        ]  # fmt: skip
        if not free:
            return None
        order.append(free[0])
    return order
