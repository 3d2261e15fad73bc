"""The best plans by enumeration, from the rules of the cost model alone: nothing of the planner is used.

Every order of phases, every cut into stages, every chunk, every number of devices and every set of swapped components
is tried. The time of a pipeline comes from the recurrence of its finish times, not from a formula. ``exhaustive`` tries
literally all; without it, ways to run a phase that are worse in everything than another way are left out, and a plan is
given up as soon as it is slower than the best one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Cut = tuple[tuple[int, ...], ...]
MODES = ("temporal", "spatial", "hybrid")


class Ways(NamedTuple):
    """All ways to run a phase of some components, a row each, in the order that decides ties of their times.

    ``cuts`` are the cuts into stages and ``cut`` [W] says which one a way has; ``stage`` and ``devices`` [W, C] are
    those of each component; ``chunk``, ``pipe`` (time of all chunks), ``need`` and ``kind`` are [W].
    """

    cuts: list[Cut]
    cut: Numbers
    stage: Numbers
    devices: Numbers
    chunk: Numbers
    pipe: Numbers
    need: Numbers

    @property
    def kind(self) -> Numbers:
        """Whether there are several stages, and whether each has one component alone: what decides the class."""
        kinds = [2 * (len(cut) > 1) + all(len(stage) == 1 for stage in cut) for cut in self.cuts]
        return np.array(kinds, dtype=np.int64)[self.cut]


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
        self.every: dict[frozenset[int], Ways] = {}
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
        time, held = sum(way["time"] for way in phases), sum(way["held"] for way in phases)
        for group in _subsets(self.all - done):
            if not group or any(not self.before[i] <= done | group for i in group):
                continue
            for way in self._ways(group, swapped):
                if not self.exhaustive and all(
                    mode in self.best and time + way["time"] > self.best[mode][0] for mode in MODES
                ):
                    break  # the ways that follow take longer still
                whole = held + way["held"]
                taken = [*phases, way]
                if any(other["need"] + whole - other["held"] > self.capacity for other in taken):
                    continue
                if self.exhaustive or not self._is_slower(taken, done | group):
                    self._extend(swapped, done | group, taken)

    def _is_slower(self, phases: list[dict[str, Any]], done: frozenset[int]) -> bool:
        """Whether the plan is slower already than the best of every class that it can still be in."""
        possible: tuple[str, ...]
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
            if group not in self.every:
                self.every[group] = self._every_way(sorted(group))
            self.ways[group, out] = self._in_order(self.every[group], sorted(group), out)
        return self.ways[group, out]

    def _in_order(self, ways: Ways, group: list[int], out: frozenset[int]) -> list[dict[str, Any]]:
        """The ways with what loading takes, the best first."""
        load, unload = (self._most(ways, group, key, out) for key in ("onload_us", "offload_us"))
        held = self._most(ways, group, "resident_mib", self.all - out)
        time = load + ways.pipe + unload
        order = np.argsort(time, kind="stable")
        kept = order.tolist() if self.exhaustive else _not_worse(order, ways.kind, held, ways.need)
        return [self._way(ways, group, w, int(time[w]), int(held[w])) for w in kept]

    def _way(self, ways: Ways, group: list[int], w: int, time: int, held: int) -> dict[str, Any]:
        stages = ways.cuts[ways.cut[w]]
        devices = tuple(int(ways.devices[w, group.index(stage[0])]) for stage in stages)
        need, chunk = int(ways.need[w]), int(ways.chunk[w])
        return {"stages": stages, "devices": devices, "chunk": chunk, "time": time, "held": held, "need": need}

    def _every_way(self, group: list[int]) -> Ways:
        """Every cut into stages with every chunk, and all numbers of devices that fit into the memory there is."""
        cuts: list[Cut] = []
        parts: list[tuple[Numbers, ...]] = []
        for stages in _cuts(group):
            order = _sorted_stages(stages, self.edges)
            if order is None or len(stages) == 1 and len(group) > 1:
                continue
            stage_of = np.array([next(s for s, stage in enumerate(stages) if i in stage) for i in group])
            for chunk in self.case["chunks"]:
                devices = self._devices(stages, chunk)
                need, pipe = self._need(stages, chunk, devices), self._pipe(stages, order, chunk, devices)
                devices, pipe, need = (column[need <= self.capacity] for column in (devices, pipe, need))
                same = (np.full(len(need), value, dtype=np.int64) for value in (len(cuts), chunk))
                stage = np.tile(stage_of, (len(need), 1))
                parts.append((*same, stage, devices[:, stage_of], devices.sum(1), pipe, need))
            cuts.append(stages)
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        cut, chunks, stage, devices, used, pipe, need = columns
        vector = [column for c in range(len(group)) for column in (stage[:, c], devices[:, c], -chunks)]
        first = np.lexsort((*reversed(vector), used))
        return Ways(cuts, *(column[first] for column in (cut, stage, devices, chunks, pipe, need)))

    def _devices(self, stages: Cut, chunk: int) -> Numbers:
        """Every number of devices for each stage that was profiled and that there is: [ways, stages]."""
        most = self.case["devices"]
        profiled = [
            [n for n in range(1, most + 1) if all(self._is_profiled(i, n, chunk) for i in stage)] for stage in stages
        ]
        grid = np.stack(np.meshgrid(*(np.array(row, dtype=np.int64) for row in profiled), indexing="ij"), axis=-1)
        devices = grid.reshape(-1, len(stages))
        return devices[devices.sum(axis=1) <= most]

    def _is_profiled(self, i: int, n: int, chunk: int) -> bool:
        return str(chunk) in self.components[i]["time_us"].get(str(n), {})

    def _most(self, ways: Ways, group: list[int], key: str, counted: frozenset[int]) -> Numbers:
        """The largest sum that a stage has of a row of its components, those that count: [ways]."""
        sums = np.zeros((len(ways.need), len(group)), dtype=np.int64)
        for c, i in enumerate(group):
            if i in counted:
                sums[np.arange(len(sums)), ways.stage[:, c]] += self._row(self.components[i][key])[ways.devices[:, c]]
        return sums.max(axis=1)

    def _need(self, stages: Cut, chunk: int, devices: Numbers) -> Numbers:
        """The most memory that a stage takes on each of its devices: [ways]."""
        needs = []
        for stage, n in zip(stages, devices.T, strict=True):
            mine = [self.components[i] for i in stage]
            work = np.max([self._column(c["work_mib"], chunk)[n] for c in mine], axis=0)
            needs.append(sum(self._row(c["resident_mib"])[n] for c in mine) + work)
        return np.max(needs, axis=0)

    def _column(self, table: dict[str, dict[str, int]], chunk: int) -> Numbers:
        return self._row({n: row[str(chunk)] for n, row in table.items() if str(chunk) in row})

    def _row(self, row: dict[str, int]) -> Numbers:
        """A row of a table by number of devices; what it does not hold is never asked for."""
        found = np.zeros(self.case["devices"] + 1, dtype=np.int64)
        for n, value in row.items():
            found[int(n)] = value
        return found

    def _pipe(self, stages: Cut, order: list[int], chunk: int, devices: Numbers) -> Numbers:
        """The finish time of the last chunk, [ways]: a stage begins one when it and those that feed it are done."""
        times = [
            sum(self._column(self.components[i]["time_us"], chunk)[n] for i in stage)
            for stage, n in zip(stages, devices.T, strict=True)
        ]
        feeds = [[q for q in order if q != s and self._feeds(stages[q], stages[s])] for s in range(len(stages))]
        finish = [np.zeros(len(devices), dtype=np.int64) for _ in stages]
        for _ in range(self.case["items"] // chunk):
            for s in order:
                finish[s] = np.max([finish[s], *(finish[q] for q in feeds[s])], axis=0) + times[s]
        return np.max(finish, axis=0)

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


def _not_worse(order: Numbers, kind: Numbers, held: Numbers, need: Numbers) -> list[int]:
    """The ways, from the best to the worst, that no better one of their kind equals in memory."""
    kept: list[int] = []
    while len(order):
        kept.append(int(order[0]))
        first = kept[-1]
        order = order[(kind[order] != kind[first]) | (held[order] < held[first]) | (need[order] < need[first])]
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
