"""From a configuration to its plan, and from a plan to the configuration that follows it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plugrl.config.checks import cross_problems
from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError
from plugrl.models.processor import TextProcessor
from plugrl.rewards.manager import RewardManager
from plugrl.runners.elastic import with_placements
from plugrl.runners.planning.profiling import Measured, Profiler
from plugrl.runners.planning.space import PlanSpace, plan_space
from plugrl.runners.prompts import PromptData
from plugrl.runners.replanning import keys_of
from plugrl.runtime import RaySession
from plugrl.runtime.planner import Plan, PlanArtefact, Profile, ProfiledCase, case_from_profile, make_artefact
from plugrl.runtime.planner.artefact import hash_of
from plugrl.tracking.redact import redact

_USABLE = 0.9
"""Share of a device's memory that a plan may fill: the rest goes to contexts, buffers and fragments."""
_PACKAGES = ("torch", "ray", "transformers")


def plan_configuration(
    config: RunConfig,
    session: RaySession,
    data: PromptData,
    processor: TextProcessor,
    reward: RewardManager,
    *,
    given: RunConfig,
    devices: int | None = None,
    say: Callable[[str], None],
) -> PlanArtefact:
    """Measure the components of a configuration and return its plan, which may be none.

    Args:
        config: what is measured. given: what the user gave, by whose hash the plan knows its configuration.
        devices: devices to plan for, as many as the configuration uses when omitted.
        say: takes lines of progress.

    Raises:
        ConfigError: no plan can be made of this configuration.
    """
    space = plan_space(config, len(data.train), session.layout.nodes, devices)
    measured = Profiler(config, space, session, data, processor, reward, say).run()
    case = case_of(space, measured)
    artefact = make_artefact(case.case.to_dict(), plain(given))
    return replace(
        artefact,
        versions={**artefact.versions, **_versions(), "platform": session.platform_name},
        profile=profile_dict(measured, case),
    )


def case_of(space: PlanSpace, measured: Measured) -> ProfiledCase:
    """Return the case that was measured."""
    return case_from_profile(
        measured.profile,
        devices=space.devices,
        items=space.items,
        chunks=space.chunks,
        capacity_mib=int(measured.capacity_mib * _USABLE) or _all_of(measured.profile),
        edges=space.edges,
        device_counts={str(name): counts for name, counts in space.counts.items()},
        component_chunks={str(name): chunks for name, chunks in space.own_chunks.items()},
    )


def with_plan(config: RunConfig, plan: Plan) -> RunConfig:
    """Return the configuration with the placement and the flow of a plan. Raises ConfigError when they do not fit."""
    placement, flow = keys_of(config, plan)
    config = with_placements(config, placement).model_copy(update={"flow": flow})
    if problems := cross_problems(config, "train"):
        raise ConfigError("\n".join(problems))
    return config


def check_made_for(artefact: PlanArtefact, config: RunConfig) -> None:
    """Raise ConfigError when a plan was made for another configuration, or is none."""
    if artefact.configuration != hash_of(plain(config)):
        raise ConfigError("--from: the plan was made for another configuration or with other keys; plan again.")


def plain(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as plain values without secrets."""
    values: dict[str, Any] = redact(config.model_dump(mode="json"))
    return values


def profile_dict(measured: Measured, case: ProfiledCase) -> dict[str, Any]:
    """Return the JSON form of what was measured, and of what was not."""
    return {
        "components": [
            {
                "name": component.name,
                "points": [vars(point) for point in component.points],
                "loadings": [vars(loading) for loading in component.loadings],
            }
            for component in measured.profile.components
        ],
        "sync_us": {str(count): time_us for count, time_us in measured.sync_us.items()},
        "interpolated": _sorted(case.interpolated),
        "extrapolated": _sorted(case.extrapolated),
        "left_out": _sorted(case.left_out),
        "notes": list(measured.notes),
    }


def unmeasured(profile: Mapping[str, Any], plan: Plan) -> list[str]:
    """Return which figures of a plan nobody measured, a text each."""
    used = {
        (name, stage.devices, phase.chunk)
        for phase in plan.phases
        for stage in phase.stages
        for name in stage.components
    }
    return [
        f"{name} on {devices} devices in chunks of {chunk} is {how}"
        for how in ("interpolated", "extrapolated")
        for name, devices, chunk in map(tuple, profile.get(how, ()))
        if (name, devices, chunk) in used
    ]


def _sorted(entries: Any) -> list[Sequence[Any]]:
    return [list(entry) for entry in sorted(entries)]


def _all_of(profile: Profile) -> int:
    """Return memory in which everything fits at once."""
    return max(1, sum(component.largest_mib for component in profile.components))


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}
