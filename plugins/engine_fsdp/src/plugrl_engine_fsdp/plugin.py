"""The manifest of the FSDP2, FSDP1 and DDP engines. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, ConfigSection, EngineEntry, Plugin

_MODEL_TYPES = ("language_model", "value_model", "embodied_model")
_NEEDS = ("torch", "safetensors")
_CAPABILITIES = ("bf16", "cpu", "param_offload", "optimizer_offload", "gradient_checkpointing")
_SECTION = ConfigSection(
    owners=("actor", "critic", "ref"),
    key="fsdp_config",
    schema="plugrl_engine_fsdp.config:FsdpConfig",
    # The other spelling of these keys, that of LeRobot's trainer.
    aliases=(
        ("parallelism", "fsdp_config.parallelism"),
        ("ema", "fsdp_config.ema"),
        ("accelerator.mixed_precision", "fsdp_config.dtype"),
        ("accelerator.grad_scaler", "fsdp_config.grad_scaler"),
        ("accelerator.ddp", "fsdp_config.ddp"),
        ("accelerator.fsdp.strategy", "strategy"),
        ("accelerator.fsdp.wrap_modules", "fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"),
        ("accelerator.fsdp.min_num_params", "fsdp_config.wrap_policy.min_num_params"),
        ("accelerator.fsdp", "fsdp_config"),
        ("{owner}.fsdp_config.strategy", "strategy"),
    ),
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
            backend="fsdp",
            device="*",
            target="plugrl_engine_fsdp.backends:Fsdp1Engine",
            capabilities=("fsdp1", "unit_precision", "bf16", "cpu", "optimizer_offload", "gradient_checkpointing"),
            sections=(_SECTION,),
            summary="torch's FSDP1, with a precision for every unit and gradients kept in low precision",
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
