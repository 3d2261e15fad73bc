"""The registry of data sets; light.

A data set is a function ``build(config, **source_options)``, where ``config`` is the section ``data``. It returns
:class:`plugrl.data.records.Splits` of prompts, or :class:`plugrl.data.samples.SampleSplits` of tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from plugrl.data.records import Splits
from plugrl.data.samples import SampleSplits
from plugrl.errors import ConfigError, NotRegistered, PluginError, one_of
from plugrl.registry import Registry

F = TypeVar("F", bound=Callable[..., "Splits | SampleSplits"])


class DataSettings(Protocol):
    """What is read of the configuration's section ``data``, here and by the built-in data sets."""

    @property
    def source(self) -> str:
        """Registered name of the data set."""

    @property
    def source_options(self) -> Mapping[str, Any]:
        """Its options."""

    @property
    def train_files(self) -> tuple[str, ...]:
        """Files of the source ``files``."""

    @property
    def val_files(self) -> tuple[str, ...]:
        """Held-out files of the source ``files``."""

    @property
    def prompt_key(self) -> str:
        """Column that holds the prompt."""


def _check(key: Any, value: object) -> None:
    if not callable(value):
        raise PluginError(f'Data set "{key}" must be a function, got {value!r}.')


DATASETS: Registry[Callable[..., Splits | SampleSplits]] = Registry("dataset", check=_check)
DATASETS.register_target("files", "plugrl.data.loading:files", summary="JSONL and parquet files")
DATASETS.register_target("arithmetic", "plugrl.data.arithmetic:arithmetic", summary="generated two-operand arithmetic")
DATASETS.register_target("gsm8k", "plugrl.data.gsm8k:gsm8k", summary="a folder with GSM8K's train.jsonl and test.jsonl")
DATASETS.register_target("lerobot", "plugrl.data.lerobot:lerobot", summary="a LeRobot data set: samples for `sft`")


def register_dataset(name: str, *, force: bool = False, summary: str = "") -> Callable[[F], F]:
    """Return a decorator that registers a data set and gives the function back unchanged."""

    def decorate(function: F) -> F:
        DATASETS.register(name, function, force=force, summary=summary)
        return function

    return decorate


def load_dataset(config: DataSettings) -> Splits:
    """Build the data set ``config.source``, which must be one of prompts.

    Raises:
        NotRegistered: no such data set.
        ConfigError: an option it does not take, or a data set that has no prompts.
        DataError: a missing or malformed file, named with its line.
    """
    splits = load_source(config)
    if isinstance(splits, SampleSplits):
        raise ConfigError(f"data.source: {config.source} has samples for supervised training (plugrl sft), no prompts.")
    return splits


def load_source(config: DataSettings) -> Splits | SampleSplits:
    """Build the data set ``config.source``, of prompts or of tensors. Raises as :func:`load_dataset`."""
    if config.source not in DATASETS:
        raise NotRegistered(f"data.source: {DATASETS.explain_missing(config.source)}")
    build = DATASETS.get(config.source)
    options = dict(config.source_options)
    _check_options(config.source, build, options)
    return build(config, **options)


def _check_options(name: str, build: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = list(inspect.signature(build).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            raise ConfigError(f'data.source_options.{option}: source "{name}" takes {one_of(known)}.')
