"""Refuse variables by which a launcher would configure training behind the configuration's back.

``accelerate launch`` with a configuration file sets them. Ignoring them would be as wrong as obeying: the user believes
that they act, and the stored configuration does not describe the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from plugrl.errors import ConfigError

OVERRIDES = ("LEROBOT_ALLOW_ACCELERATE_ENV", "PLUGRL_ALLOW_ACCELERATE_ENV")
_PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
_TRUE, _FALSE = {"1", "true", "yes"}, {"0", "false", "no", ""}
_HARMLESS: dict[str, set[str] | None] = {
    # Set by every `accelerate launch`, whatever it is given.
    "ACCELERATE_MIXED_PRECISION": {"no"},
    "ACCELERATE_DYNAMO_BACKEND": {"no", "NO"},
    "ACCELERATE_DYNAMO_MODE": {"default"},
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": {"false", "False"},
    "ACCELERATE_DYNAMO_USE_DYNAMIC": {"false", "False"},
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": {"false", "False"},
    "ACCELERATE_USE_CPU": None,
    "ACCELERATE_CPU_AFFINITY": None,
    "ACCELERATE_DEBUG_MODE": None,
}
"""Variables that change nothing with these values; None: with any."""

_INSTEAD = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "accelerator.gradient_accumulation.steps",
    "ACCELERATE_MIXED_PRECISION": "accelerator.mixed_precision",
    "ACCELERATE_USE_FSDP": "parallelism.dp_shard",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism.dp_replicate and parallelism.dp_shard",
    "ACCELERATE_TORCH_DEVICE": "platform",
    "FSDP_VERSION": "accelerator.fsdp.strategy",
    "FSDP_SHARDING_STRATEGY": "accelerator.fsdp.sharding_strategy",
    "FSDP_RESHARD_AFTER_FORWARD": "accelerator.fsdp.reshard_after_forward",
    "FSDP_OFFLOAD_PARAMS": "accelerator.fsdp.cpu_offload",
    "FSDP_IGNORED_MODULES": "accelerator.fsdp.ignored_modules",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "accelerator.fsdp.wrap_modules",
    "FSDP_MIN_NUM_PARAMS": "accelerator.fsdp.min_num_params",
    "FSDP_STATE_DICT_TYPE": "checkpoint_format",
    "FSDP_ACTIVATION_CHECKPOINTING": "model.enable_gradient_checkpointing",
    "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "parallelism.dp_replicate",
    "PARALLELISM_CONFIG_DP_SHARD_SIZE": "parallelism.dp_shard",
    "PARALLELISM_CONFIG_CP_SIZE": "parallelism.context_parallel",
}
_UNKNOWN = "a key of this configuration"
_logger = logging.getLogger(__name__)


def check_launcher_variables(environ: Mapping[str, str] | None = None) -> None:
    """Refuse to start under variables that configure training, unless an override variable allows them.

    Raises:
        ConfigError: listing each variable, the key that says the same, and where it may come from; or naming an
            override that is neither on nor off.
    """
    source = os.environ if environ is None else environ
    found = {name: value for name, value in sorted(source.items()) if _acts(name, value)}
    allowed_by = [name for name in OVERRIDES if _is_on(name, source.get(name, ""))]
    if not found:
        return
    listed = [f"{name}={value}" for name, value in found.items()]
    if allowed_by:
        _logger.warning("%s lets these variables pass; they change nothing: %s", allowed_by[0], ", ".join(listed))
        return
    instead = [f"  {name}={value}: use {_INSTEAD.get(name, _UNKNOWN)}" for name, value in found.items()]
    raise ConfigError(
        "Training is configured by its own keys alone, but these variables are set, most likely by a configuration "
        "file of `accelerate launch` (it reads its default file even when none is named):\n"
        + "\n".join(instead)
        + f"\nUnset them, or set {OVERRIDES[0]}=1 to go on without their effect."
    )


def _acts(name: str, value: str) -> bool:
    if not name.startswith(_PREFIXES):
        return False
    harmless = _HARMLESS.get(name, set())
    return harmless is not None and value not in harmless


def _is_on(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in _TRUE | _FALSE:
        raise ConfigError(f'{name}="{text}" is neither on nor off: use 1 or 0.')
    return value in _TRUE
