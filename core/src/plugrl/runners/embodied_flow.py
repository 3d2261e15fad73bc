"""The flow of a step in environments: environments and policy together, then advantages, then the update.

Environments and policy call each other, so they are one stage whose devices are those of both: they take turns on
shared devices, and work side by side where they have devices of their own and the scenes are cut into stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plugrl.config.embodied_checks import chunk_of
from plugrl.config.schema import RunConfig
from plugrl.runtime.flow import DRIVER, Arrangement, StageSpec, arrange
from plugrl.runtime.flow.explain import FlowTable, explain

TOGETHER = ("env", "rollout")
"""The components of the stage `gen`."""

WHY = "advantages are normalised and rows are shuffled over all scenes"


def arrange_embodied(
    config: RunConfig, devices: Mapping[str, Sequence[int]], verbs: Mapping[str, Callable[..., Any]] | None = None
) -> Arrangement:
    """Put the stages of a step in their places; ``verbs`` are what they do.

    Raises ConfigError for every mistake of the section ``flow``.
    """
    train = config.env.train
    assert train is not None, "the configuration was checked"
    total = train.total_num_envs * train.rollout_epoch
    run = verbs or {}
    stages = [
        StageSpec(name="gen", component="rollout", run=run.get("gen", _nothing), size=total, why=WHY),
        StageSpec(name="adv", component=DRIVER, run=run.get("adv", _nothing), after=("gen",), size=total, why=WHY),
        StageSpec(
            name="update_actor", component="actor", run=run.get("update_actor", _nothing), after=("adv",), size=total,
            why=WHY,
        ),
    ]  # fmt: skip
    both = tuple(dict.fromkeys([*devices["env"], *devices["rollout"]]))
    placed = {"rollout": both, "actor": tuple(devices["actor"])}
    return arrange(stages, placed, config.flow, total, total_key="env.train.total_num_envs x rollout_epoch")


def explain_embodied(config: RunConfig, devices: Mapping[str, Sequence[int]]) -> FlowTable:
    """Return the table of a step, and what goes on between environments and policy within the stage `gen`."""
    table = explain(arrange_embodied(config, devices), "scenes")
    notes = [note for note in table.notes if "flow.chunk" not in note]
    rows = tuple(
        (phase, stage, " + ".join(TOGETHER) if stage == "gen" else component, *rest)
        for phase, stage, component, *rest in table.rows
    )
    return FlowTable(rows, (*notes, *loop_notes(config, devices)))


def loop_notes(config: RunConfig, devices: Mapping[str, Sequence[int]]) -> Sequence[str]:
    """Say how scenes go round between environments and policy."""
    train = config.env.train
    assert train is not None, "the configuration was checked"
    workers, stages, chunk = len(devices["env"]), config.rollout.pipeline_stage_num, chunk_of(config)
    slices = workers * stages
    rounds = (train.steps or 0) // chunk
    shared = set(devices["env"]) & set(devices["rollout"])
    apart = "on shared devices" if shared else "on devices of their own"
    way = (
        "while one slice is stepped the policy acts in the other ones"
        if slices > 1
        else "they take turns (rollout.pipeline_stage_num=2 lets them overlap)"
    )
    return (
        f"gen: {workers} env x {stages} stages = {slices} slices of {train.total_num_envs // slices} scenes, "
        f"{len(devices['rollout'])} rollout, {apart}; {train.rollout_epoch} passes of {rounds} rounds with {chunk} "
        f"actions each; {way}",
    )


def _nothing(*_: Any) -> None:
    return None
