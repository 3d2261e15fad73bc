"""The manifest. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.platforms.capabilities import PLATFORM_CAPABILITIES
from plugrl.plugins import PLUGIN_API, EngineEntry, PlatformEntry, Plugin

CAPABILITIES = tuple(PLATFORM_CAPABILITIES)

plugin = Plugin(
    name="platform_rocm",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="AMD GPUs by ROCm",
    platforms=(
        PlatformEntry(
            name="rocm",
            aliases=("amd",),
            vendor="amd",
            device="cuda",
            target="plugrl_platform_rocm.platform:RocmPlatform",
            probe="plugrl_platform_rocm.probe:probe",
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
            vendor="amd",
            target="plugrl_platform_rocm.engines.fsdp:RocmFsdp2Engine",
            summary="parameters sharded over all ranks",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp",
            device="cuda",
            vendor="amd",
            target="plugrl_platform_rocm.engines.fsdp:RocmFsdp1Engine",
            summary="torch's FSDP1",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="ddp",
            device="cuda",
            vendor="amd",
            target="plugrl_platform_rocm.engines.fsdp:RocmDdpEngine",
            summary="a whole copy on every rank",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="cuda",
            vendor="amd",
            target="plugrl_platform_rocm.engines.megatron:RocmMegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
)
