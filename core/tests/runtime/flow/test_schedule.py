"""The rules of the micro flow on a virtual clock: section 5's times, turns, phases, limits, no deadlock."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from plugrl.config.schema import FlowConfig
from plugrl.errors import PlugRLError
from plugrl.runtime.flow import DRIVER, Item, Stage, arrange, loop_stages, simulate


def nothing(item: Item) -> None:
    """Work that is only simulated."""


def stage(name: str, devices: Sequence[int] = (), after: Sequence[str] = (), **keys: object) -> Stage:
    return Stage(name=name, component=name, run=nothing, after=tuple(after), devices=tuple(devices), **keys)  # type: ignore[arg-type]


def times(values: dict[str, int]):  # type: ignore[no-untyped-def]
    return lambda item: values[item.stage.component]


@pytest.mark.parametrize(
    ("costs", "edges", "chunks", "devices", "makespan", "bubble"),
    [
        ({"a": 4, "b": 4}, [("a", "b")], 8, (1, 1), 36, 1 / 9),
        ({"a": 3, "b": 6, "c": 2}, [("a", "b"), ("b", "c")], 5, (1, 2, 1), 35, 0.39286),
        ({"a": 4, "b": 4, "c": 4, "d": 6}, [("a", "b"), ("b", "c"), ("a", "d")], 3, (1, 1, 1, 1), 22, 0.38636),
    ],
)
def test_pipelines_take_what_the_timing_model_says(costs, edges, chunks, devices, makespan, bubble) -> None:  # type: ignore[no-untyped-def]
    stages, first = [], 0
    for (name, _), count in zip(costs.items(), devices, strict=True):
        after = [u for u, v in edges if v == name]
        stages.append(stage(name, range(first, first + count), after))
        first += count
    record = simulate(stages, chunks, times(costs))
    assert record.makespan == makespan
    assert record.bubble_ratio == pytest.approx(bubble, abs=5e-6)


@pytest.mark.parametrize(("e", "r", "slices", "rounds", "makespan"), [(4, 2, 2, 5, 42), (3, 3, 2, 4, 27)])
def test_loops_take_what_the_timing_model_says(e: int, r: int, slices: int, rounds: int, makespan: int) -> None:
    assert loop_time(e, r, slices, rounds) == makespan


def test_the_formula_of_a_loop_holds_for_random_times() -> None:
    draw = random.Random(3)
    for _ in range(150):
        e, r, slices, rounds = draw.randint(1, 9), draw.randint(1, 9), draw.randint(1, 5), draw.randint(1, 6)
        longest = max(e, r)
        expected = (rounds - 1) * max(slices * longest, e + r) + e + r + (slices - 1) * longest
        assert loop_time(e, r, slices, rounds) == expected, (e, r, slices, rounds)


def loop_time(e: int, r: int, slices: int, rounds: int) -> float:
    specs = loop_stages(("env", lambda number: nothing), ("policy", lambda number: nothing), rounds, 4)
    flow = arrange(specs, {"env": (0,), "policy": (1,)}, FlowConfig(), 4 * slices)
    return simulate(flow.stages, flow.total, times({"env": e, "policy": r})).makespan


def test_the_recurrence_holds_for_random_graphs() -> None:
    """finish(s, j) = max(finish(s, j-1), finish(q, j) of all inputs q) + time(s), whatever the graph."""
    draw = random.Random(5)
    for _ in range(200):
        count, chunks = draw.randint(1, 6), draw.randint(1, 7)
        names = [f"s{i}" for i in range(count)]
        after = {name: [other for other in names[:i] if draw.random() < 0.5] for i, name in enumerate(names)}
        cost = {name: draw.randint(0, 9) for name in names}
        stages = [stage(name, [i], after[name]) for i, name in enumerate(names)]
        record = simulate(stages, chunks, times(cost))
        finish: dict[tuple[str, int], int] = {}
        for j in range(chunks):
            for name in names:
                ready = max([finish.get((name, j - 1), 0), *(finish[other, j] for other in after[name])])
                finish[name, j] = ready + cost[name]
        assert {(s.item.stage.name, s.item.index): s.end for s in record.spans} == finish


def test_stages_on_the_same_devices_take_turns_portion_by_portion() -> None:
    stages = [stage("a", [0, 1]), stage("b", [0, 1], ["a"]), stage("c", [2], ["b"])]
    record = simulate(stages, 3, times({"a": 2, "b": 3, "c": 4}))
    shared = [str(span.item) for span in record.spans if span.item.stage.name != "c"]
    assert shared == ["a[0:1]", "b[0:1]", "a[1:2]", "b[1:2]", "a[2:3]", "b[2:3]"]
    # A stage of two components is one of 5 a portion: 5 + 4 + 2 * max(5, 4).
    assert record.makespan == 19


def test_a_phase_begins_when_the_one_before_is_done() -> None:
    stages = [stage("a", [0]), stage("b", [1], ["a"]), stage("c", [0, 1], ["b"], phase=1)]
    record = simulate(stages, 2, times({"a": 5, "b": 5, "c": 1}))
    assert min(span.begin for span in record.spans if span.item.stage.name == "c") == 15
    assert record.makespan == 17


def test_a_stage_that_gathers_waits_for_all_and_streams_again_behind() -> None:
    stages = [stage("a", [0], size=2), stage("all", [1], ["a"], size=8), stage("out", [2], ["all"], size=4)]
    record = simulate(stages, 8, times({"a": 1, "all": 1, "out": 1}))
    begins = {str(span.item): span.begin for span in record.spans}
    assert begins["all[0:8]"] == 4 and begins["out[0:4]"] == 5 and begins["out[4:8]"] == 6


def test_portions_of_other_sizes_wait_for_just_what_they_need() -> None:
    stages = [stage("a", [0], size=3), stage("b", [1], ["a"], size=2)]
    record = simulate(stages, 6, times({"a": 10, "b": 1}))
    begins = {str(span.item): span.begin for span in record.spans}
    assert begins["b[0:2]"] == 10 and begins["b[2:4]"] == 20 and begins["b[4:6]"] == 21


@pytest.mark.parametrize("limit", [1, 2])
def test_a_stage_is_ahead_of_its_consumer_by_no_more_than_allowed(limit: int) -> None:
    record = simulate([stage("a", [0]), stage("b", [1], ["a"])], 8, times({"a": 1, "b": 10}), max_ahead=limit)
    ends = {str(span.item): span.end for span in record.spans}
    for span in record.spans:
        if span.item.stage.name == "a" and span.item.start > limit:
            consumed = span.item.start - limit
            assert span.begin >= ends[f"b[{consumed - 1}:{consumed}]"], f"{span.item} began too early"
    assert record.makespan == 81


def test_the_driver_takes_what_is_ready_and_holds_no_device() -> None:
    """A driver's stage that waits for a slow input does not keep another one from running."""
    slow, fast = stage("slow", [0]), stage("fast", [1])
    stages = [
        slow, fast,
        Stage(name="x", component=DRIVER, run=nothing, after=("slow",)),
        Stage(name="y", component=DRIVER, run=nothing, after=("fast",)),
    ]  # fmt: skip
    record = simulate(stages, 2, lambda item: {"slow": 10, "fast": 1}.get(item.stage.name, 1))
    begins = {str(span.item): span.begin for span in record.spans}
    assert begins["y[0:1]"] == 1 and begins["y[1:2]"] == 2


def test_every_flow_ends_whatever_sizes_phases_limits_and_shared_devices() -> None:
    draw = random.Random(11)
    for case in range(400):
        count, total = draw.randint(1, 7), draw.randint(1, 12)
        stages: list[Stage] = []
        for i in range(count):
            after = [other for other in stages if draw.random() < 0.4]
            phase = max([draw.randint(0, 2), *(other.phase for other in after)])
            devices = draw.sample(range(3), draw.randint(0, 3))
            component = f"c{draw.randint(0, 2)}" if devices else DRIVER
            stages.append(
                Stage(
                    name=f"s{i}", component=component, run=nothing, after=tuple(o.name for o in after),
                    devices=tuple(devices), phase=phase, size=draw.choice([1, 2, 3, total]),
                )
            )  # fmt: skip
        record = simulate(stages, total, lambda item: draw.randint(0, 5), max_ahead=draw.choice([None, 1, 2]))
        wanted = sum(-(-total // stage.size) for stage in stages)
        assert len(record.spans) == wanted, f"case {case}: {len(record.spans)} of {wanted} portions ran"
        for span in record.spans:
            for other in record.spans:
                if other is not span and set(other.item.stage.devices) & set(span.item.stage.devices):
                    assert other.end <= span.begin or span.end <= other.begin, f"{other} and {span} overlap"


def test_a_stage_that_comes_before_its_input_is_refused() -> None:
    with pytest.raises(PlugRLError, match="after 'b', which is not declared before it"):
        simulate([stage("a", [0], ["b"]), stage("b", [1])], 1, lambda item: 1)
    with pytest.raises(PlugRLError, match="later phase"):
        simulate([stage("a", [0], phase=1), stage("b", [1], ["a"])], 1, lambda item: 1)
