"""Which modules the workers of a run will import: :class:`plugrl.runtime.RaySession` has them imported once for all."""

from __future__ import annotations

from plugrl.config.schema import RunConfig
from plugrl.engines import EngineRegistry
from plugrl.errors import PlugRLError
from plugrl.models.registry import MODELS
from plugrl.registration import RegistryEntry
from plugrl.rollouts.registry import ROLLOUTS
from plugrl.runtime.preload import modules_of
from plugrl.workers.training import engine_type_of


def preload_of(config: RunConfig) -> list[str]:
    """Return the modules of the model, the engine and the rollout that the configuration names, as plugins say.

    What a script or an extension module registered is left out: importing it registers it.
    """
    entries: list[RegistryEntry | None] = []
    try:
        engine = EngineRegistry.explain(engine_type_of("actor", config.model), config.actor.strategy)
        entries = [MODELS.entry(config.model.model_type), engine.entry]
        if not config.is_embodied:
            entries.append(ROLLOUTS.entry(config.rollout.name))
    except PlugRLError:  # whoever needs what is missing says so
        pass
    return modules_of([entry.target for entry in entries if entry is not None])
