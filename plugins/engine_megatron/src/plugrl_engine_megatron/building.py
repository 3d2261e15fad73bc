"""The part of a model that lies on this rank, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from plugrl.errors import ConfigError
from plugrl_engine_megatron.architecture import Architecture, read_architecture
from plugrl_engine_megatron.config import MegatronConfig
from plugrl_engine_megatron.holdings import Holdings
from plugrl_engine_megatron.model import build_stages
from plugrl_engine_megatron.parallel import Place, current_device, set_up
from plugrl_engine_megatron.policy import MegatronPolicy
from plugrl_models_hf.policy import CausalLMPolicy
from plugrl_models_hf.value import CausalLMValue


@dataclass(frozen=True, kw_only=True)
class Built:
    """What :func:`build` gives."""

    policy: MegatronPolicy
    holdings: Holdings
    architecture: Architecture
    place: Place
    device: torch.device


def build(outline: Any, config: MegatronConfig, dtype: torch.dtype, *, recompute: bool) -> Built:
    """Build what this rank holds of the policy ``outline``. Collective.

    Raises ConfigError for a model that this engine does not train, and for degrees that do not divide it.
    """
    if not isinstance(outline, CausalLMPolicy | CausalLMValue):
        raise ConfigError(
            "model.model_type: the megatron engine trains causal_lm and causal_lm_value, and this policy is a "
            f"{type(outline).__name__}; fsdp2 trains every policy"
        )
    if outline.adapter_config() is not None:
        raise ConfigError("model.lora: the megatron engine trains whole models; leave the section out, or use fsdp2")
    architecture = read_architecture(outline.model.config, has_values=isinstance(outline, CausalLMValue))
    problems = list(architecture.problems(config))
    if problems:
        raise ConfigError("; ".join(problems))
    place = set_up(config)
    stages = build_stages(architecture, config, place, dtype, recompute=recompute)
    return Built(
        policy=MegatronPolicy(stages, outline),
        holdings=Holdings(stages, architecture, place),
        architecture=architecture,
        place=place,
        device=current_device(),
    )
