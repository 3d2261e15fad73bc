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
    name="platform_flagos",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="FlagOS, a software stack on GPUs of several vendors",
    platforms=(
        PlatformEntry(
            name="flagos",
            aliases=(),
            vendor="flagos",
            device="cuda",
            target="plugrl_platform_flagos.platform:FlagosPlatform",
            probe="plugrl_platform_flagos.probe:probe",
            # Negative: chosen only by its name, because a stack of software says nothing about the chip.
            priority=-1,
            capabilities=CAPABILITIES,
        ),
    ),
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp2",
            device="cuda",
            vendor="flagos",
            target="plugrl_platform_flagos.engines.fsdp:FlagosFsdp2Engine",
            summary="parameters sharded over all ranks",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp",
            device="cuda",
            vendor="flagos",
            target="plugrl_platform_flagos.engines.fsdp:FlagosFsdp1Engine",
            summary="torch's FSDP1",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="ddp",
            device="cuda",
            vendor="flagos",
            target="plugrl_platform_flagos.engines.fsdp:FlagosDdpEngine",
            summary="a whole copy on every rank",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="cuda",
            vendor="flagos",
            target="plugrl_platform_flagos.engines.megatron:FlagosMegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
)
