"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import torch

from plugrl.platforms.generic import TorchAcceleratorPlatform


def _flagcx_is_wanted() -> bool:
    return os.environ.get("USE_FLAGCX", "").strip().lower() in ("1", "true")


class RocmPlatform(TorchAcceleratorPlatform):
    """AMD GPUs. torch's build for ROCm answers as ``torch.cuda``, and RCCL under the name of NCCL."""

    smi_command = "rocm-smi"

    @property
    def device_name(self) -> str:
        """``"cuda"``."""
        return "cuda"

    @property
    def vendor_name(self) -> str:
        """``"amd"``."""
        return "amd"

    def is_available(self) -> bool:
        """Whether torch was built for ROCm and sees a device."""
        return torch.version.hip is not None and super().is_available()

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """With the flag ``rocm-smi`` decides, once torch is the build for ROCm."""
        return torch.version.hip is not None and super().is_platform_available(use_smi_check)

    def communication_backend_name(self) -> str:
        """``"nccl"``, or ``"flagcx"`` where ``USE_FLAGCX`` asks for it."""
        return "flagcx" if _flagcx_is_wanted() else "nccl"

    def forward_env_vars(self) -> list[str]:
        """What chooses and finds the collective library."""
        return ["USE_FLAGCX", "FLAGCX_PATH"]

    def visible_devices_envvar(self) -> str:
        """``"CUDA_VISIBLE_DEVICES"``."""
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """``"GPU"``, built into Ray."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Three masks lie on one another here; Ray is kept from all of them."""
        return [f"RAY_EXPERIMENTAL_NOSET_{prefix}_VISIBLE_DEVICES" for prefix in ("CUDA", "HIP", "ROCR")]

    def generic_engine_vendor(self) -> str:
        """``"nvidia"``: its engines run here too, where there is none of amd itself."""
        return "nvidia"

    def is_ipc_supported(self) -> bool:
        """True."""
        return True

    def rollout_env_vars(self) -> dict[str, str]:
        """Without cuMem allocations, which deadlock where the rollout is apart; SGLang uses AITER."""
        return {"NCCL_CUMEM_ENABLE": "0", "SGLANG_USE_AITER": "1"}

    def nvtx_range(self, msg: str) -> AbstractContextManager[Any]:
        """Mark a range for rocprof."""
        return torch.cuda.nvtx.range(msg)

    def profiler_start(self) -> None:
        """Begin what the profiler records, by the runtime's own call."""
        torch.cuda.profiler.start()

    def profiler_stop(self) -> None:
        """End what the profiler records."""
        torch.cuda.profiler.stop()

    def cudart(self) -> Any:
        """The runtime API that torch has loaded."""
        return torch.cuda.cudart()

    def sdk_version(self) -> str:
        """The release that torch was built for."""
        release = torch.version.hip
        return f"ROCm {release}" if release else ""
