"""What engines that run in processes of a rollout worker share: their version, their devices, their options' keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from plugrl.errors import ConfigError, MissingDependency
from plugrl.rollouts.base import RolloutPlace
from plugrl_rollout_openai.surface import Folder, Use, problems, record

_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def installed_version(name: str, uses: Sequence[Use], checked: Sequence[str]) -> str:
    """Return the installed version of an engine, one that has all that is used of it.

    Versions that were checked before are taken as they are, others are read where they are installed.

    Raises:
        MissingDependency: there is none in this interpreter.
        ConfigError: it lacks something; the message lists what, and the versions that have it.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise MissingDependency(
            f"{name} is not installed where the rollout runs: pip install {name}=={checked[-1]} there, or choose an "
            "interpreter that has it (cluster.node_groups.env_configs.python_interpreter_path)."
        ) from None
    version = found.version
    if version in checked:
        return version
    lacking = problems(uses, record(uses, Folder(Path(str(found.locate_file(""))))))
    if lacking:
        raise ConfigError(
            f"{name} {version} lacks what the rollout uses of it: {'; '.join(lacking)}. Versions that have it: "
            f"{', '.join(checked)}."
        )
    return version


@contextmanager
def devices_of(place: RolloutPlace) -> Iterator[None]:
    """Let processes that are started within see the devices of all the engine's ranks; this one keeps its own."""
    if not place.variable or len(place.devices) < 2:
        yield
        return
    before = os.environ.get(place.variable)
    os.environ[place.variable] = ",".join(place.devices)
    try:
        yield
    finally:
        if before is None:
            del os.environ[place.variable]
        else:
            os.environ[place.variable] = before


def precision_of(model_config: Any) -> str:
    """Return torch's name of ``model.precision``, or auto."""
    value = model_config.get("precision") if isinstance(model_config, Mapping) else model_config.precision
    return _PRECISIONS.get(str(value), "auto")


def trusts_remote_code(model_config: Any) -> bool:
    """Return ``model.trust_remote_code``."""
    if isinstance(model_config, Mapping):
        return bool(model_config.get("trust_remote_code", False))
    return bool(model_config.trust_remote_code)


def merged_arguments(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an engine with those that the user adds. Raises ConfigError for one that is taken."""
    taken = sorted(own.keys() & given.keys())
    if taken:
        raise ConfigError(
            f"rollout.options.engine_args: {', '.join(taken)} is set by PlugRL; leave it out, or use the key of the "
            "configuration that stands for it."
        )
    return {**own, **given}
