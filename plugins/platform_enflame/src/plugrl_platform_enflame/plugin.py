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
    name="platform_enflame",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Enflame GCUs",
    platforms=(
        PlatformEntry(
            name="enflame",
            aliases=("gcu",),
            vendor="enflame",
            device="gcu",
            target="plugrl_platform_enflame.platform:EnflamePlatform",
            probe="plugrl_platform_enflame.probe:probe",
            # Above others: torch_gcu changes parts of torch.cuda, and other probes may be misled by it.
            priority=60,
            capabilities=CAPABILITIES,
        ),
    ),
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp2",
            device="gcu",
            vendor="enflame",
            target="plugrl_platform_enflame.engines.fsdp:EnflameFsdp2Engine",
            summary="parameters sharded over all ranks",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp",
            device="gcu",
            vendor="enflame",
            target="plugrl_platform_enflame.engines.fsdp:EnflameFsdp1Engine",
            summary="torch's FSDP1",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="ddp",
            device="gcu",
            vendor="enflame",
            target="plugrl_platform_enflame.engines.fsdp:EnflameDdpEngine",
            summary="a whole copy on every rank",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="gcu",
            vendor="enflame",
            target="plugrl_platform_enflame.engines.megatron:EnflameMegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
)
