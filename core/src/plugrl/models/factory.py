"""From a configuration to a policy and its text processor."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from plugrl.errors import STOPS, ConfigError, PluginError, one_line
from plugrl.models.registry import MODELS
from plugrl.registry import import_target

if TYPE_CHECKING:
    import torch

    from plugrl.models.processor import TextProcessor

logger = logging.getLogger(__name__)

_DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}


class ModelView(Mapping[str, Any]):
    """A read-only configuration that answers both ``cfg.hidden_size`` and ``cfg["hidden_size"]``, nested likewise.

    Builders get one when their model type brings no schema. A missing key is an AttributeError that lists the others.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return _view(self._values[key])

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"The model configuration has no key {name!r}. It has: {', '.join(sorted(values))}.")
        return _view(values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ModelView({self._values!r})"


def get_model(cfg: Any, torch_dtype: torch.dtype | str | None = None) -> Any:
    """Build the policy that ``cfg.model_type`` names.

    ``cfg`` is a mapping, an OmegaConf configuration or PlugRL's ``ModelConfig``; a model type with a schema gets it
    validated. ``torch_dtype`` overrides ``cfg.precision`` (auto, fp32, bf16, fp16); auto is the platform's choice.
    Raises ConfigError, and ModelNotFound with candidates, the nearest name and the reasons of failed plugins.
    """
    from plugrl.platforms.selection import get_platform

    values = _plain(cfg)
    model_type = _model_type(values)
    builder = MODELS.get(model_type)
    config = _checked(model_type, cfg, values)
    dtype = resolve_dtype(torch_dtype or values.get("precision") or "auto")
    # Before the model is built: patches replace classes that the builder is about to use.
    get_platform().apply_model_patches(model_type)
    policy = builder(config, dtype)
    adapter = getattr(policy, "adapter_config", None)
    if getattr(config, "trains_adapter", False) and (adapter is None or adapter() is None):
        raise ConfigError(f'model.lora: "{model_type}" trains no adapters; leave the section out to train all weights.')
    return policy


def get_model_skeleton(cfg: Any, torch_dtype: torch.dtype | str | None = None) -> Any:
    """Build the policy to look at its modules: without memory for weights where its builder can, else as it is.

    Raises as :func:`get_model`.
    """
    import torch

    try:
        with torch.device("meta"):
            return get_model(cfg, torch_dtype)
    except STOPS:
        raise
    except BaseException as error:  # A third party's builder may do anything that a tensor without values cannot.
        logger.debug("built with its weights, since without them: %s", one_line(error))
    return get_model(cfg, torch_dtype)


def get_processor(cfg: Any) -> TextProcessor:
    """Build the tokenizer and chat template of ``cfg.model_type``, without its weights. Raises as :func:`get_model`."""
    values = _plain(cfg)
    model_type = _model_type(values)
    processor = MODELS.entry(model_type).meta.get("processor")
    if processor is None:
        raise ConfigError(f'model.model_type: "{model_type}" brings no text processor, so it cannot read prompts.')
    if isinstance(processor, str):
        MODELS.get(model_type)  # a broken plugin is reported with its own reason
        processor = _imported(processor, model_type)
    return processor(_checked(model_type, cfg, values))


def resolve_dtype(precision: torch.dtype | str) -> torch.dtype:
    """Return the torch dtype of ``auto``, ``fp32``, ``bf16`` or ``fp16``; ``auto`` asks the platform."""
    import torch

    if isinstance(precision, torch.dtype):
        return precision
    name = precision.strip().lower()
    if name == "auto":
        from plugrl.platforms.selection import get_platform

        name = get_platform().preferred_dtype()
    if name not in _DTYPES:
        raise ConfigError(f"model.precision: {precision!r} is none of auto, fp32, bf16, fp16.")
    return getattr(torch, _DTYPES[name])


def _imported(target: str, model_type: str) -> Any:
    """Return the object of a further target of a model type; raises PluginError, naming its plugin, when it fails."""
    try:
        return import_target(target)
    except STOPS:
        raise
    except BaseException as error:  # Third-party code.
        owner = MODELS.entry(model_type).origin.owner
        raise PluginError(f'Model "{model_type}" of {owner}: {target} failed to load: {one_line(error)}.') from error


def _model_type(values: Mapping[str, Any]) -> str:
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type.strip():
        raise ConfigError(f"model.model_type: names no model type, got {model_type!r}.")
    return model_type


def _checked(model_type: str, cfg: Any, values: dict[str, Any]) -> Any:
    """Return what the builder gets: an instance of the model type's schema, else attribute access to the values."""
    schema = MODELS.entry(model_type).meta.get("schema")
    if schema is None:
        return cfg if isinstance(cfg, BaseModel) else ModelView(values)
    if isinstance(schema, str):
        schema = _imported(schema, model_type)
    if isinstance(cfg, schema):
        return cfg
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = (f"model.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False))
        raise ConfigError("\n".join(lines)) from None


def _plain(cfg: Any) -> dict[str, Any]:
    if isinstance(cfg, BaseModel):
        return cfg.model_dump()
    if isinstance(cfg, ModelView):
        return dict(cfg._values)
    if isinstance(cfg, Mapping):
        return {str(key): _plain_value(value) for key, value in cfg.items()}
    raise ConfigError(f"model: expected a mapping with model_type, got {type(cfg).__name__}.")


def _plain_value(value: Any) -> Any:
    """Turn foreign containers (OmegaConf's among them) into dict and list; leave everything else alone."""
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | tuple):
        return [_plain_value(item) for item in value]
    return value


def _view(value: Any) -> Any:
    return ModelView(value) if isinstance(value, Mapping) else value
