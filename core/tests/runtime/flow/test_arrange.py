"""Placement and the section ``flow`` decide phases and portions; every mistake is named with its key, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.config.schema import FlowConfig
from plugrl.errors import ConfigError
from plugrl.runtime.flow import DRIVER, Item, StageSpec, arrange, simulate


def nothing(item: Item) -> None:
    """Work that is only simulated."""


def spec(name: str, component: str, *after: str, size: int | None = None) -> StageSpec:
    return StageSpec(name=name, component=component, run=nothing, after=after, size=size)


RL = [
    spec("gen", "rollout"), spec("reward", DRIVER, "gen"), spec("old", "actor", "gen"), spec("ref", "ref", "gen"),
    spec("adv", DRIVER, "reward", "old", "ref", size=8), spec("update", "actor", "adv", size=8),
]  # fmt: skip


def resolve(devices: dict[str, tuple[int, ...]], **flow: Any) -> Any:
    return arrange(RL, devices, FlowConfig.model_validate(flow), 8, total_key="data.train_batch_size")


@pytest.mark.parametrize(
    ("devices", "phases"),
    [
        ({"rollout": (0,), "ref": (0,), "actor": (0,)}, [("rollout",), ("ref",), ("actor",)]),
        ({"rollout": (0,), "ref": (1,), "actor": (2,)}, [("rollout", "ref", "actor")]),
        ({"rollout": (0,), "ref": (1,), "actor": (0, 1)}, [("rollout", "ref"), ("actor",)]),
        ({"rollout": (0,), "ref": (2, 3), "actor": (1, 2)}, [("rollout", "ref"), ("actor",)]),
    ],
)
def test_without_phases_the_placement_decides(devices: dict[str, tuple[int, ...]], phases: list[Any]) -> None:
    assert [phase.components for phase in resolve(devices).phases] == phases


def test_the_same_stages_run_one_after_another_or_side_by_side() -> None:
    """The placement decides whether work of one length is done in turn, or while the next portion is made."""
    cost = lambda item: 0 if item.stage.component == DRIVER else item.stop - item.start  # noqa: E731
    together = resolve({"rollout": (0,), "ref": (0,), "actor": (0,)}, chunk=2)
    apart = resolve({"rollout": (0,), "ref": (1,), "actor": (2,)}, chunk=2)
    assert simulate(together.stages, 8, cost).makespan == 32
    assert simulate(apart.stages, 8, cost).makespan == 18
    whole = resolve({"rollout": (0,), "ref": (1,), "actor": (2,)})
    assert simulate(whole.stages, 8, cost).makespan == 24


def test_swapped_components_come_and_leave_around_each_of_their_phases() -> None:
    flow = resolve({"rollout": (0,), "ref": (0,), "actor": (0,)}, swapped=["rollout", "actor"])
    record = simulate(flow.stages, 8, lambda item: 0 if item.stage.component == DRIVER else 1)
    order = [span.item.stage.name for span in record.spans if span.item.stage.devices]
    assert order == [
        "load rollout 1", "gen", "unload rollout 1", "ref", "load actor 7", "old", "update", "unload actor 7",
    ]  # fmt: skip


def test_a_shared_stage_takes_turns() -> None:
    flow = resolve(
        {"rollout": (0,), "ref": (0,), "actor": (1,)}, phases=[{"chunk": 4, "stages": [["rollout", "ref"], ["actor"]]}]
    )
    record = simulate(flow.stages, 8, lambda item: 1)
    assert [str(s.item) for s in record.spans if s.item.stage.devices == (0,)] == [
        "gen[0:4]", "ref[0:4]", "gen[4:8]", "ref[4:8]",
    ]  # fmt: skip


def test_all_mistakes_are_named_with_their_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(
            {"rollout": (0,), "ref": (1,), "actor": (1,)}, chunk=3, swapped=["rolout"],
            phases=[{"chunk": 5, "stages": [["rollout"], ["rollout"]]}, {"stages": [["actor"], ["ref"]]}],
        )  # fmt: skip
    text = str(caught.value).splitlines()
    assert "flow.chunk: 3 does not divide data.train_batch_size, which is 8; take 2 or 4" in text
    assert "flow.phases.0.chunk: 5 does not divide data.train_batch_size, which is 8; take 4 or 8" in text
    assert "flow.phases.0.stages: rollout stands in two places of flow.phases" in text
    assert any(line.startswith("flow.swapped: no component 'rolout'") and "mean rollout?" in line for line in text)
    assert any(line.startswith("flow.phases.1: actor and ref share device 1") for line in text)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"stages": [["actor"]]}, {"stages": [["rollout"], ["ref"]]}], "flow.phases.0: actor needs results of"),
        ([{"stages": [["rollout"], ["actor"]]}], "flow.phases: ref has no place in any phase"),
    ],
)
def test_phases_in_an_order_that_cannot_work_are_refused(phases: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"rollout": (0,), "ref": (1,), "actor": (2,)}, phases=phases)
