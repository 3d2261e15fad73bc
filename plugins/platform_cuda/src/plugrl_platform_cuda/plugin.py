"""The manifest. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.platforms.capabilities import PLATFORM_CAPABILITIES
from plugrl.plugins import PLUGIN_API, EngineEntry, PlatformEntry, Plugin

CAPABILITIES = tuple(PLATFORM_CAPABILITIES)

plugin = Plugin(
    name="platform_cuda",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="NVIDIA GPUs",
    platforms=(
        PlatformEntry(
            name="cuda",
            aliases=("nvidia",),
            vendor="nvidia",
            device="cuda",
            target="plugrl_platform_cuda.platform:CudaPlatform",
            probe="plugrl_platform_cuda.probe:probe",
            capabilities=CAPABILITIES,
        ),
    ),
    engines=(
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp2",
            device="cuda",
            vendor="nvidia",
            target="plugrl_platform_cuda.engines.fsdp:CudaFsdp2Engine",
            summary="parameters sharded over all ranks",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="fsdp",
            device="cuda",
            vendor="nvidia",
            target="plugrl_platform_cuda.engines.fsdp:CudaFsdp1Engine",
            summary="torch's FSDP1",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type=("language_model", "value_model", "embodied_model"),
            backend="ddp",
            device="cuda",
            vendor="nvidia",
            target="plugrl_platform_cuda.engines.fsdp:CudaDdpEngine",
            summary="a whole copy on every rank",
            needs=("plugrl_engine_fsdp",),
        ),
        EngineEntry(
            model_type="language_model",
            backend="megatron",
            device="cuda",
            vendor="nvidia",
            target="plugrl_platform_cuda.engines.megatron:CudaMegatronEngine",
            summary="tensor and pipeline parallel; there once plugrl-engine-megatron is installed",
            needs=("plugrl_engine_megatron",),
        ),
    ),
)
