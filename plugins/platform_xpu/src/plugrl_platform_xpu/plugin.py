"""The manifest. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.platforms.capabilities import PLATFORM_CAPABILITIES
from plugrl.plugins import PLUGIN_API, EngineEntry, PlatformEntry, Plugin

# xccl has no average, and device memory is not shared between processes.
_ABSENT = {"dist.all_reduce.avg", "platform.ipc"}
CAPABILITIES = tuple(name for name in PLATFORM_CAPABILITIES if name not in _ABSENT)

plugin = Plugin(
    name="platform_xpu",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Intel GPUs",
    platforms=(
        PlatformEntry(
            name="xpu",
            aliases=("intel",),
            vendor="intel",
            device="xpu",
            target="plugrl_platform_xpu.platform:XpuPlatform",
            probe="plugrl_platform_xpu.probe:probe",
            capabilities=CAPABILITIES,
        ),
    ),
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp2",
            device="xpu",
            vendor="intel",
            target="plugrl_platform_xpu.engines.fsdp:XpuFsdp2Engine",
            summary="parameters sharded over all ranks",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp",
            device="xpu",
            vendor="intel",
            target="plugrl_platform_xpu.engines.fsdp:XpuFsdp1Engine",
            summary="torch's FSDP1",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="ddp",
            device="xpu",
            vendor="intel",
            target="plugrl_platform_xpu.engines.fsdp:XpuDdpEngine",
            summary="a whole copy on every rank",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="xpu",
            vendor="intel",
            target="plugrl_platform_xpu.engines.megatron:XpuMegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
)
