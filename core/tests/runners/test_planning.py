"""Plans for configurations: what may be chosen, what a component is measured by, and a run beside its plan."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError
from plugrl.metric import Metric
from plugrl.rewards.base import RewardResult
from plugrl.rollouts.base import Completion
from plugrl.runners.elastic import with_placements
from plugrl.runners.flow_table import check_flow, stages_of
from plugrl.runners.needs import Needs
from plugrl.runners.plan_watch import PlanWatch, phase_seconds
from plugrl.runners.planning import profiling, space, verbs
from plugrl.runners.planning.planner import case_of, check_made_for, plain, profile_dict, unmeasured, with_plan
from plugrl.runners.planning.profiling import Measured, Profiler
from plugrl.runners.planning.progress import Progress
from plugrl.runners.planning.space import PlanSpace, edges_of, plan_space
from plugrl.runners.replanning import PlanFollower
from plugrl.runners.rl_flow import owners_of
from plugrl.runners.step import Step
from plugrl.runtime.flow import FlowRecord, Item, Span, Stage
from plugrl.runtime.placement import Node
from plugrl.runtime.planner import (
    ComponentProfile,
    Loading,
    Phase,
    Plan,
    PlanArtefact,
    Point,
    Profile,
    artefact_from_dict,
    case_from_profile,
    collapse,
    make_artefact,
    plan_from_keys,
)
from plugrl.runtime.planner import Stage as PlannedStage
from plugrl.workers.residence import DeviceMemory

BATCH = 16


def settings(**sections: Any) -> RunConfig:
    values: dict[str, Any] = {
        "data": {"source": "arithmetic", "train_batch_size": BATCH, "max_response_length": 6, "max_prompt_length": 8},
        "actor": {"ppo_mini_batch_size": 4},
        "rollout": {"n": 2},
        "reward": {"name": "exact_match"},
        "algorithm": {"adv_estimator": "grpo"},
        "cluster": {"component_placement": {"actor": "0-1", "rollout": 2}},
    }
    for name, keys in sections.items():
        values.setdefault(name, {}).update(keys)
    return RunConfig.model_validate(values)


STREAMS = {"use_rollout_log_probs": True}


@pytest.fixture(autouse=True)
def any_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever engine is installed, it runs on any number of ranks."""
    monkeypatch.setattr(space, "check_engines", lambda config, ranks: None)


def space_of(config: RunConfig, devices: int | None = None) -> PlanSpace:
    return plan_space(config, 64, [Node(devices=8)], devices)


# --------------------------------------------------------------------- what may be chosen
def test_components_run_where_their_rows_divide_and_take_the_chunks_that_their_stages_can() -> None:
    found = space_of(settings())
    assert found.devices == 3, "the devices that the configuration uses"
    assert found.counts == {"rollout": (1, 2, 3), "actor": (1, 2)}, "8 samples of a mini-batch do not divide by 3"
    assert found.chunks == (2, 4, 8, 16)
    assert found.own_chunks["rollout"] == found.chunks
    assert found.own_chunks["actor"] == (16,), "it recomputes log-probabilities before it learns"
    assert space_of(settings(actor=STREAMS)).own_chunks["actor"] == (4, 8, 16), "whole mini-batches"
    assert space_of(settings(), 8).chunks == (4, 8, 16), "2 prompts of 2 responses are no rows for 8 ranks"


def test_a_critic_or_a_reference_brings_its_edges_and_a_graph_stays_without_cycles() -> None:
    critic = {"ppo_mini_batch_size": 4}
    config = settings(algorithm={"adv_estimator": "gae"}, actor={"use_kl_loss": True}, critic=critic)
    stages = stages_of(config)(Needs(config))
    owners = owners_of(stages)
    assert owners["reward"] == "rollout" and owners["adv"] == "actor" and owners["update_critic"] == "critic"
    assert edges_of(stages, owners) == (
        ("critic", "actor"), ("ref", "actor"), ("rollout", "actor"), ("rollout", "critic"), ("rollout", "ref"),
    )  # fmt: skip
    assert list(space_of(config).components) == ["rollout", "ref", "critic", "actor"]


def test_what_cannot_be_planned_is_refused_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^flow.asynchronous.enable: .* set it to false"):
        space_of(settings(actor=STREAMS, flow={"asynchronous": {"enable": True}}))
    with pytest.raises(ConfigError, match=r"^--devices 9: there are 8 devices"):
        space_of(settings(), 9)
    with pytest.raises(ConfigError, match="ppo_mini_batch_size: 5 does not divide"):
        space_of(settings(actor={"ppo_mini_batch_size": 5}))


def test_few_points_are_measured_on_many_devices() -> None:
    assert space.measured_counts(range(1, 25)) == (1, 2, 3, 4, 8, 16, 24)
    assert space.measured_chunks((2, 4, 8, 16)) == (2, 8, 16) and space.measured_chunks((16,)) == (16,)


# --------------------------------------------------------------------- measuring
class Clock:
    """Time that passes when a component works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Group:
    """A component on some devices: a prompt takes its ``seconds``, divided by the devices."""

    def __init__(self, name: str, ranks: int, clock: Clock) -> None:
        self.group = SimpleNamespace(name=name, size=ranks)
        self.ranks = self.num_shares = ranks
        self.clock = clock
        self.weight_version = 0
        self.trained: list[int] = []

    def work(self, rows: int, seconds: float) -> None:
        self.clock.now += rows / 2 * seconds / self.ranks

    def generate(self, prompts: Any, params: Any, seeds: Any) -> list[Completion]:
        self.work(len(prompts) * params.n, 1.0)
        return [
            Completion(
                prompt_index=i, sample_index=n, tokens=(1,) * (1 + (i + n) % 3), logprobs=torch.zeros(1 + (i + n) % 3),
                finish_reason="stop", weight_version=0,
            )
            for i in range(len(prompts))
            for n in range(params.n)
        ]  # fmt: skip

    def infer(self, batch: Any, options: Any, *, adapter: bool = True) -> Any:
        self.work(len(batch["input_ids"]), 0.25)
        return {"logprobs": torch.zeros(batch["response_mask"].shape)}

    def train_some(self, batches: Any, objective: Any, options: Any, *, last: bool = True) -> Any:
        assert last, "a measurement that is not the last part of a step leaves the schedule where it is"
        self.trained.append(sum(len(batch["input_ids"]) for batch in batches))
        self.work(self.trained[-1], 0.5)
        return [[{"loss": Metric(0.0)}]]

    def metrics(self, parts: Any) -> dict[str, float]:
        return {"loss": 0.0}

    def update_weights(self, actor: Any, version: int) -> None:
        self.clock.now += 9.0 if version == 1 else 1.6

    def reside(self, state: str) -> None:
        self.clock.now += 0.5 if state == "away" else 0.75

    def memory_mib(self) -> tuple[int, int]:
        return 10, 40 // self.ranks

    def device_memory(self) -> DeviceMemory:
        return DeviceMemory(40 // self.ranks + 7, 100)


def profiler(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, score: Any = None
) -> tuple[Profiler, list[Any], list[str]]:
    """A profiler of components that only let time pass; what it launches, and what it says."""
    clock = Clock()
    launched: list[Any] = []
    lines: list[str] = []
    for module in (profiling, verbs):
        monkeypatch.setattr(module, "time", clock)

    @contextmanager
    def launch(self: Profiler, name: str, count: int) -> Any:
        parts = {name: Group(name, count, clock)}
        if name == "actor":
            parts["rollout"] = Group("rollout", 1, clock)
        launched.append((name, count, parts[name]))
        yield SimpleNamespace(**{"rollout": None, "actor": None, "ref": None, "critic": None, **parts})

    monkeypatch.setattr(Profiler, "_launched", launch)
    state = {"position": 5}
    restored: list[Any] = []
    sampler = SimpleNamespace(state_dict=lambda: state, load_state_dict=restored.append)
    record = SimpleNamespace(ground_truth="", extra_info={}, text="")

    def next_batch(step: int) -> Any:
        return SimpleNamespace(prompts=[[1, 2]] * BATCH, seeds=[step] * BATCH, records=[record] * BATCH)

    data = SimpleNamespace(sampler=sampler, next_batch=next_batch)
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_ids=(9,), decode=lambda tokens: "x" * len(tokens))
    judge = SimpleNamespace(
        score_batch=lambda texts, *_, note: [RewardResult((score or len)(text), {}) for text in texts]
    )
    found = Profiler(config, space_of(config), object(), data, tokenizer, judge, lines.append)  # type: ignore[arg-type]
    assert restored == [state], "measuring must not move the data of the run"
    return found, launched, lines


def test_components_are_measured_alone_by_the_verbs_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found, launched, lines = profiler(settings(), monkeypatch)
    measured = found.run()
    assert [(name, count) for name, count, _ in launched] == [
        ("rollout", 1), ("rollout", 2), ("rollout", 3), ("actor", 1), ("actor", 2),
    ]  # fmt: skip
    rollout, actor = measured.profile.components
    assert {(p.devices, p.chunk): p.time_us for p in rollout.points if p.devices < 3} == {
        (1, 2): 2_000_000, (1, 8): 8_000_000, (1, 16): 16_000_000,
        (2, 2): 1_000_000, (2, 8): 4_000_000, (2, 16): 8_000_000,
    }  # fmt: skip
    # 16 prompts of log-probabilities and of learning, and the way of the weights without the first, which connects.
    assert {(p.devices, p.chunk): p.time_us for p in actor.points} == {(1, 16): 13_600_000, (2, 16): 7_600_000}
    assert measured.sync_us == {1: 1_600_000, 2: 1_600_000} and measured.capacity_mib == 100
    assert actor.loadings == (Loading(1, 40, 750_000, 500_000), Loading(2, 20, 750_000, 500_000))
    assert {point.work_mib for point in (*actor.points, *rollout.points)} == {7}
    assert launched[-1][2].trained == [2 * BATCH] * 4, "each run trains on the whole batch"
    assert len([line for line in lines if line.startswith("measuring ")]) == 5 + 9 + 2 and "left" in lines[-1]
    assert not measured.notes


def test_with_equal_rewards_and_a_filter_the_actor_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(actor=STREAMS, algorithm={"filter_groups": {"enable": True}})
    found, launched, _ = profiler(config, monkeypatch, score=lambda text: 0.0)
    measured = found.run()
    assert "No prompt had two different rewards" in measured.notes[0]
    assert set(launched[-1][2].trained) == {2 * BATCH}


def test_declared_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(flow={"memory_mib": {"actor": 55}}, cluster={"device_memory_mib": 60})
    found, _, _ = profiler(config, monkeypatch)
    measured = found.run()
    actor = measured.profile.components[1]
    assert {loading.resident_mib for loading in actor.loadings} == {55} and {p.work_mib for p in actor.points} == {0}
    assert measured.capacity_mib == 60


def test_progress_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    lines: list[str] = []
    monkeypatch.setattr("plugrl.runners.planning.progress.time", clock)
    progress = Progress(30, lines.append)
    for seconds in (10.0, 2.0):
        progress.begin("something")
        clock.now += seconds
        progress.done()
    progress.begin("more")
    assert lines == [
        "measuring 1/30: something", "measuring 2/30: something (about 5 min left)",
        "measuring 3/30: more (about 3 min left)",
    ]  # fmt: skip


# --------------------------------------------------------------------- plan and apply
def measured_by_hand(actor_s: float) -> Measured:
    """A rollout that two devices halve, and an actor that gains nothing from a second one."""
    rollout = [Point(n, m, m * 100_000 // n, 1) for n in (1, 2, 3) for m in (2, 16)]
    actor = [Point(n, m, round(m * actor_s * 1e6 / 16), 1) for n in (1, 2) for m in (4, 16)]
    loadings = tuple(Loading(n, 10, 5, 5) for n in (1, 2, 3))
    profile = Profile(
        (ComponentProfile("rollout", tuple(rollout), loadings), ComponentProfile("actor", tuple(actor), loadings[:2]))
    )
    return Measured(profile, {1: 1000}, 0, ("a note",))


def planned(config: RunConfig, actor_s: float = 0.2) -> Any:
    measured = measured_by_hand(actor_s)
    case = case_of(space_of(config), measured)
    artefact = make_artefact(case.case.to_dict(), plain(config))
    object.__setattr__(artefact, "profile", profile_dict(measured, case))
    return artefact


def test_a_plan_becomes_the_keys_of_the_configuration_and_is_read_back_from_them() -> None:
    config = settings(actor=STREAMS, flow={"chunk": 8, "max_ahead": 2})
    artefact = artefact_from_dict(planned(config).to_dict())
    plan = artefact.best
    assert plan is not None and artefact.profile["notes"] == ["a note"]
    applied = with_plan(config, plan)
    again = plan_from_keys(applied.cluster.component_placement, applied.flow.model_dump(), 3)
    assert (again.phases, again.swapped) == (plan.phases, plan.swapped)
    assert applied.flow.max_ahead == 2 and applied.flow.chunk is None, "keys that a plan does not set stay"
    arrangement = check_flow(applied, {"rollout": (0, 1, 2), "actor": (0, 1)})
    assert len(arrangement.phases) == len(plan.phases)
    RunConfig.model_validate(applied.model_dump())
    check_made_for(artefact, config)
    with pytest.raises(ConfigError, match="--from: the plan was made for another configuration"):
        check_made_for(artefact, settings())


def test_chunks_that_the_actor_cannot_take_are_in_no_plan_and_figures_that_were_not_measured_are_named() -> None:
    artefact = planned(settings())
    actor = artefact.case["components"][1]
    assert set(actor["time_us"]["1"]) == {"16"}
    plan = Plan((Phase(4, (PlannedStage(("rollout",), 3),)), Phase(16, (PlannedStage(("actor",), 2),))))
    assert unmeasured(artefact.profile, plan) == ["rollout on 3 devices in chunks of 4 is interpolated"]


# --------------------------------------------------------------------- a run beside its plan
def record_of(*spans: tuple[str, int, float, float]) -> FlowRecord:
    found = []
    for name, phase, begin, end in spans:
        devices = () if name == "driver" else (0,)
        placed = Stage(name=name, component=name, run=lambda item: None, devices=devices, phase=phase * 3 + 1)
        found.append(Span(Item(placed, 0, 0, 1), begin, end))
    return FlowRecord(tuple(found))


def test_a_phase_lasts_until_the_next_one_works_on_a_device() -> None:
    driver = (("driver", 0, 2.0, 2.5), ("driver", 1, 2.5, 2.6))
    record = record_of(("rollout", 0, 0.5, 2.0), *driver, ("actor", 1, 3.0, 4.0))
    assert phase_seconds(record, 2) == [2.5, 1.0]
    assert phase_seconds(FlowRecord(), 2) == [0.0, 0.0]


def watch_of(artefact: PlanArtefact) -> PlanWatch:
    assert artefact.best is not None
    return PlanWatch(collapse(artefact.case).case, artefact.best)


def test_a_step_is_logged_beside_its_prediction_and_drift_is_found_after_five_steps() -> None:
    watch = watch_of(planned(settings(), actor_s=1.0))
    first, second = (time_us / 1e6 for time_us in watch.predicted_us)
    drifts = []
    for number in range(1, 8):
        step = Step(number)
        step.seconds["update_weights"] = 0.25
        gone = first * (1.1 if number < 3 else 1.5)
        record = record_of(("rollout", 0, 0, gone - 0.1), ("driver", 0, gone - 0.1, gone),
                           ("actor", 1, gone, gone + second - 0.25))  # fmt: skip
        drifts.append(watch.observe(step, record, {"rollout": "rollout", "driver": "rollout", "actor": "actor"}))
    assert drifts[:-1] == [None] * 6 and drifts[-1] is not None and drifts[-1].phase == 0
    assert step.metrics["perf/plan_phase_0_measured_s"] == pytest.approx(1.5 * first)
    assert step.metrics["perf/plan_phase_1_measured_s"] == pytest.approx(second), "the weights count with the actor"
    assert step.metrics["perf/plan_predicted_s"] == pytest.approx(first + second)
    assert step.metrics["perf/plan_error"] == pytest.approx((1.5 * first + second) / (first + second) - 1)
    # Three devices sample, then one of them trains: the others have no work.
    whole = first + second
    assert step.metrics["perf/plan_bubble_predicted"] == pytest.approx(1 - (3 * first + second) / (3 * whole))
    assert watch.ratios() == {"rollout": pytest.approx(1.5), "actor": pytest.approx(1.0)}


def test_moving_a_component_is_no_work_of_it() -> None:
    watch = watch_of(planned(settings(), actor_s=1.0))
    load = Stage(name="load", component="rollout", run=lambda item: None, devices=(0,), transfer="load")
    record = record_of(("rollout", 0, 0.5, 1.0), ("actor", 1, 1.0, 2.0))
    record = FlowRecord((Span(Item(load, 0, 0, 1), 0.0, 0.5), *record.spans))
    watch.observe(Step(1), record, {"rollout": "rollout", "actor": "actor"})
    assert watch.ratios()["rollout"] == pytest.approx(0.5 / (watch.predicted_us[0] / 1e6), rel=1e-3)


def test_side_by_side_each_component_is_measured_by_its_own_work() -> None:
    config = settings(actor=STREAMS)
    case = collapse(planned(config).case).case
    plan = Plan((Phase(4, (PlannedStage(("rollout",), 2), PlannedStage(("actor",), 1))),))
    watch = PlanWatch(case, plan)
    spans = [("rollout", 0, i * 1.0, i * 1.0 + 0.8) for i in range(4)]
    spans += [("actor", 0, i * 1.0 + 0.8, i * 1.0 + 0.9) for i in range(4)]
    watch.observe(Step(1), record_of(*spans), {"rollout": "rollout", "actor": "actor"})
    # 4 x 0.2 s of sampling and 4 x 0.05 s of training were predicted.
    assert watch.ratios() == {"rollout": pytest.approx(4.0), "actor": pytest.approx(2.0)}


# --------------------------------------------------------------------- planning again
class Run:
    """A run as a follower sees it: steps that take what its components really take, and a scaler that may refuse."""

    def __init__(self, config: RunConfig, rollout_s: float, actor_s: float) -> None:
        self.config = config
        self.cost = {"rollout": rollout_s, "actor": actor_s}
        self.scaler = self
        self.refuses = False
        self.asked: list[dict[str, Any]] = []
        self.flows: list[Any] = []
        self.is_idle = True

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(Stage(name=name, component=name, run=lambda item: None) for name in self.cost)

    def flow_changed(self, flow: Any) -> None:
        self.config = self.config.model_copy(update={"flow": flow})
        self.flows.append(flow)

    def request_placement(self, placement: dict[str, Any]) -> None:
        self.asked.append(placement)
        self.is_idle = False

    def move(self) -> None:
        """What the scaler does in the next steps."""
        self.is_idle = True
        if not self.refuses:
            self.config = with_placements(self.config, self.asked[-1])

    def step(self, plan: Plan) -> FlowRecord:
        """The record of a step: components in phases of their own, or side by side chunk by chunk."""
        spans, clock = [], 0.0
        for p, phase in enumerate(plan.phases):
            ends = [clock] * (BATCH // phase.chunk)
            for stage in phase.stages:
                free = clock
                for portion, ready in enumerate(ends):
                    begin = max(free, ready)
                    free = begin + self.cost[stage.components[0]] * phase.chunk / stage.devices
                    ends[portion] = free
                    spans.append((stage.components[0], p, begin, free))
            clock = max(ends)
        return record_of(*sorted(spans, key=lambda span: span[2]))


def follow(run: Run, follower: PlanFollower, steps: range) -> dict[int, Step]:
    found = {}
    for number in steps:
        follower.between_steps(run, number)  # type: ignore[arg-type]
        step = found[number] = Step(number)
        if follower.watch is not None:
            follower.observe(run, step, run.step(follower.watch.plan))  # type: ignore[arg-type]
    return found


def side_by_side(rollout_s: float, actor_s: float) -> tuple[RunConfig, PlanArtefact]:
    """A plan of components that two devices halve, three cannot hold, and that work side by side when unequal."""
    points = {
        name: [Point(n, m, round(seconds * m * 1e6 / n), 0) for n in (1, 2) for m in (4, 16)]
        for name, seconds in (("rollout", rollout_s), ("actor", actor_s))
    }
    loadings = tuple(Loading(n, 1, 0, 0) for n in (1, 2))
    profile = Profile(tuple(ComponentProfile(name, tuple(found), loadings) for name, found in points.items()))
    case = case_from_profile(
        profile, devices=3, items=BATCH, chunks=(4, 16), capacity_mib=9, edges=[("rollout", "actor")],
        device_counts={"rollout": (1, 2), "actor": (1, 2)},
    )  # fmt: skip
    config = settings(actor=STREAMS)
    artefact = make_artefact(case.case.to_dict(), plain(config))
    assert artefact.best is not None
    return with_plan(config, artefact.best), artefact


def test_a_run_that_drifts_goes_over_to_the_plan_that_is_best_now(caplog: pytest.LogCaptureFixture) -> None:
    config, artefact = side_by_side(rollout_s=0.04, actor_s=0.01)
    kept: list[PlanArtefact] = []
    follower = PlanFollower(artefact, kept.append)
    assert [s.devices for s in artefact.best.phases[0].stages] == [2, 1]  # type: ignore[union-attr]
    run = Run(config, rollout_s=0.04, actor_s=0.08)
    with caplog.at_level(logging.WARNING):
        follow(run, follower, range(1, 7))
        assert len(run.asked) == 1 and follower.watch is None and kept == []
        assert run.flows[0].phases == (), "while components move, the flow follows from where they stand"
        follow(run, follower, range(7, 9))
        assert len(run.flows) == 1, "the flow of the new plan came before its components"
        run.move()
        after = follow(run, follower, range(9, 20))
    stages = {stage.components: stage.devices for phase in kept[0].best.phases for stage in phase.stages}  # type: ignore[union-attr]
    assert stages == {("rollout",): 1, ("actor",): 2}, "the actor has become the slower one"
    applied = plan_from_keys(run.config.cluster.component_placement, run.config.flow.model_dump(), 3)
    assert kept[0].best is not None and (applied.phases, applied.swapped) == (kept[0].best.phases, ())
    assert kept[0].configuration == artefact.configuration and "actor x 8.00" in kept[0].profile["notes"][-1]
    assert after[19].metrics["perf/plan_error"] == pytest.approx(0, abs=0.01), "the new plan predicts what it takes"
    texts = [entry.getMessage() for entry in caplog.records]
    assert len(texts) == 1 and "before step 6: phase 0 took" in texts[0] and "the run goes over to" in texts[0]


def test_a_plan_that_is_still_the_best_stays_with_a_better_prediction(caplog: pytest.LogCaptureFixture) -> None:
    config, artefact = side_by_side(rollout_s=0.04, actor_s=0.01)
    follower = PlanFollower(artefact, lambda found: pytest.fail("no other plan was chosen"))
    run = Run(config, rollout_s=0.08, actor_s=0.02)
    with caplog.at_level(logging.WARNING):
        steps = follow(run, follower, range(1, 13))
    assert run.asked == [] and run.flows == []
    assert steps[5].metrics["perf/plan_error"] == pytest.approx(1, abs=0.01)
    assert steps[6].metrics["perf/plan_error"] == pytest.approx(0, abs=0.01)
    assert [entry.getMessage().split(". ")[1][:31] for entry in caplog.records] == ["Planned again: the plan stays, "]


def test_a_component_that_does_not_move_leaves_the_run_without_a_plan(caplog: pytest.LogCaptureFixture) -> None:
    config, artefact = side_by_side(rollout_s=0.04, actor_s=0.01)
    follower = PlanFollower(artefact, lambda found: pytest.fail("the plan is not in use"))
    run = Run(config, rollout_s=0.04, actor_s=0.08)
    run.refuses = True
    follow(run, follower, range(1, 7))
    run.move()
    with caplog.at_level(logging.WARNING):
        follow(run, follower, range(7, 20))
    assert "rollout, actor did not move. The run goes on as it stands" in caplog.text
    assert follower.watch is None and len(run.asked) == 1 and len(run.flows) == 1
