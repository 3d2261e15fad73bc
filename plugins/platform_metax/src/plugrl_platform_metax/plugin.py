"""The manifest. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, EngineEntry, PlatformEntry, Plugin

# What training and generating rely on. The kit has not run on the device: `--probe-undeclared` there shows the rest.
CAPABILITIES = (
    *("platform.devices", "platform.copy", "platform.rng", "platform.rng.state", "platform.memory.stats"),
    *("platform.streams", "platform.visible_env", "platform.ipc", "numerics.fp32", "numerics.bf16"),
    *("numerics.attention", "numerics.lm", "numerics.optimizer", "ckpt.roundtrip", "dist.all_reduce.sum"),
    *("dist.all_gather", "dist.reduce_scatter", "dist.broadcast", "dist.object", "dist.barrier"),
    *("dist.native_backend", "dist.ddp", "dist.fsdp2", "runtime.resource", "runtime.index", "runtime.visible_env"),
    *("runtime.fingerprint", "runtime.worker_death", "rl.grpo", "rl.weight_sync", "rl.resume"),
)

plugin = Plugin(
    name="platform_metax",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="MetaX GPUs",
    platforms=(
        PlatformEntry(
            name="metax",
            aliases=(),
            vendor="metax",
            device="cuda",
            target="plugrl_platform_metax.platform:MetaxPlatform",
            probe="plugrl_platform_metax.probe:probe",
            # Above the platform of the vendor that it imitates, whose probe may see this device too.
            priority=60,
            capabilities=CAPABILITIES,
        ),
    ),
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp2",
            device="cuda",
            vendor="metax",
            target="plugrl_platform_metax.engines.fsdp:MetaxFsdp2Engine",
            summary="parameters sharded over all ranks",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp",
            device="cuda",
            vendor="metax",
            target="plugrl_platform_metax.engines.fsdp:MetaxFsdp1Engine",
            summary="torch's FSDP1",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="ddp",
            device="cuda",
            vendor="metax",
            target="plugrl_platform_metax.engines.fsdp:MetaxDdpEngine",
            summary="a whole copy on every rank",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="cuda",
            vendor="metax",
            target="plugrl_platform_metax.engines.megatron:MetaxMegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
)
