"""Building an environment by its name: its own settings checked, its simulators isolated where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plugrl.envs.config import EnvParams
from plugrl.envs.registry import ENVS, get_env
from plugrl.errors import ConfigError
from plugrl.registry import import_target

if TYPE_CHECKING:
    from plugrl.envs.base import VecEnv


def env_schema(name: str) -> type[EnvParams]:
    """Return the settings of an environment: what its plugin declares, or those that all have.

    Raises NotRegistered with candidates.
    """
    schema = ENVS.entry(name).meta.get("schema")
    if schema is None:
        return EnvParams
    found: type[EnvParams] = import_target(schema) if isinstance(schema, str) else schema  # register_env takes a class
    return found


def make_env(name: str, settings: EnvParams | Mapping[str, Any], *,
             environment: Mapping[str, str] | None = None) -> VecEnv:  # fmt: skip
    """Return the environment ``name``.

    With ``processes`` above 0 its scenes run in simulator processes, with the variables ``environment`` laid over those
    of this process. Raises NotRegistered, ConfigError for settings it does not know, and what its plugin raises.
    """
    build = get_env(name)
    params = settings if isinstance(settings, EnvParams) else checked_params(name, settings)
    if not params.processes:
        return build(params)
    from plugrl.envs.process import ProcessEnv

    return ProcessEnv(build, params, environment)


def checked_params(name: str, settings: Mapping[str, Any]) -> EnvParams:
    """Return settings as what the environment's plugin declares. Raises ConfigError naming each wrong key."""
    schema = env_schema(name)
    try:
        return schema.model_validate(dict(settings))
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or name}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise ConfigError(f'Environment "{name}": {told}. It has the keys {", ".join(schema.model_fields)}.') from None
