"""The wrap plan of one component of a run, from its configuration alone."""

from __future__ import annotations

from typing import Literal

from plugrl.config.schema import RunConfig
from plugrl.engines import EngineRegistry
from plugrl.engines.wrap_plan import WrapPlanTable
from plugrl.platforms import get_platform
from plugrl.platforms.visible import visible_count
from plugrl.runners.components import placement
from plugrl.workers.training import engine_section, engine_type_of

TrainedComponent = Literal["actor", "critic", "ref"]


def wrap_plan(config: RunConfig, component: TrainedComponent, ranks: int | None = None) -> WrapPlanTable:
    """Return how the engine of ``component`` would cut its model into units on ``ranks`` ranks; None: as placed.

    Raises:
        UserError: the engine or the model is not there, or no plan can be made of what is asked for.
    """
    section = getattr(config, component)
    model = (config.critic.model if component == "critic" else None) or config.model
    if ranks is None:
        ranks = len(placement(config, (component,), visible_count(get_platform(config.platform)))[component])
    else:
        get_platform(config.platform)
    kind = engine_type_of(component, model)
    engine = EngineRegistry.get_engine_cls(kind, section.strategy)
    return engine.wrap_plan(model, engine_section(section, kind), getattr(section, "optim", None), ranks)
