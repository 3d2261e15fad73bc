"""The manifest of the FSDP2 and DDP engines. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, ConfigSection, EngineEntry, Plugin

_MODEL_TYPES = ("language_model", "value_model")
_NEEDS = ("torch", "safetensors")
_CAPABILITIES = ("bf16", "cpu", "param_offload", "optimizer_offload", "gradient_checkpointing")
_SECTION = ConfigSection(
    owners=("actor", "critic", "ref"), key="fsdp_config", schema="plugrl_engine_fsdp.config:FsdpConfig"
)

plugin = Plugin(
    name="engine_fsdp",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="training engines on torch's own fully_shard (fsdp2) and DistributedDataParallel (ddp)",
    engines=(
        EngineEntry(
            model_type=_MODEL_TYPES,
            backend="fsdp2",
            device="*",
            target="plugrl_engine_fsdp.backends:Fsdp2Engine",
            capabilities=("fsdp2", *_CAPABILITIES),
            sections=(_SECTION,),
            summary="parameters, gradients and optimizer state sharded over all data-parallel ranks",
            needs=_NEEDS,
        ),
        EngineEntry(
            model_type=_MODEL_TYPES,
            backend="ddp",
            device="*",
            target="plugrl_engine_fsdp.backends:DdpEngine",
            capabilities=("ddp", *_CAPABILITIES),
            sections=(_SECTION,),
            summary="a full copy on every rank, gradients averaged; the plain module when there is one rank",
            needs=_NEEDS,
        ),
    ),
)
