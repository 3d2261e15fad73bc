"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import torch

from plugrl.platforms.generic import TorchAcceleratorPlatform


def _flagcx_is_wanted() -> bool:
    return os.environ.get("USE_FLAGCX", "").strip().lower() in ("1", "true")


class CudaPlatform(TorchAcceleratorPlatform):
    """NVIDIA GPUs, the device for which torch's first accelerator interface was made."""

    smi_command = "nvidia-smi"

    @property
    def device_name(self) -> str:
        """``"cuda"``."""
        return "cuda"

    @property
    def vendor_name(self) -> str:
        """``"nvidia"``."""
        return "nvidia"

    def is_available(self) -> bool:
        """Whether torch sees a device. Its build for ROCm says so too, and means another platform."""
        return torch.version.hip is None and super().is_available()

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Ask ``nvidia-smi`` if the flag is set, and torch where that command is missing, as in many containers."""
        if torch.version.hip is not None:
            return False
        return super().is_platform_available(use_smi_check) or self.is_available()

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

    def is_ipc_supported(self) -> bool:
        """True."""
        return True

    def rollout_env_vars(self) -> dict[str, str]:
        """Without cuMem allocations, which deadlock where trainer and rollout are apart."""
        return {"NCCL_CUMEM_ENABLE": "0"}

    def get_collective_module(self) -> Any:
        """``cupy.cuda.nccl`` where cupy is installed, else None."""
        try:
            from cupy.cuda import nccl
        except ImportError:
            return None
        return nccl

    def nvtx_range(self, msg: str) -> AbstractContextManager[Any]:
        """Mark a range for Nsight."""
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
        release = torch.version.cuda
        return f"CUDA {release}" if release else ""
