"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch

from plugrl.platforms.generic import TorchAcceleratorPlatform

OLDER_EXTENSION = "intel_extension_for_pytorch"
"""Adds ``torch.xpu`` to builds of torch from before it was torch's own, and kernels to later ones."""


class XpuPlatform(TorchAcceleratorPlatform):
    """Intel GPUs: the Data Center GPU Max series and Arc. xccl cannot average, see the engines."""

    @property
    def device_module(self) -> ModuleType:
        """``torch.xpu``, after the extension where it is installed. Raises PlatformUnavailable when it is missing."""
        if importlib.util.find_spec(OLDER_EXTENSION) is not None:
            self.extension = OLDER_EXTENSION
        return super().device_module

    @property
    def device_name(self) -> str:
        """``"xpu"``."""
        return "xpu"

    @property
    def vendor_name(self) -> str:
        """``"intel"``."""
        return "intel"

    def communication_backend_name(self) -> str:
        """``"xccl"``."""
        return "xccl"

    def visible_devices_envvar(self) -> str:
        """``"ZE_AFFINITY_MASK"``."""
        return "ZE_AFFINITY_MASK"

    def ray_resource_name(self) -> str:
        """``"GPU"``, built into Ray."""
        return "GPU"

    def sdk_version(self) -> str:
        """The release that torch was built for."""
        release = torch.version.xpu
        return f"XPU {release}" if release else ""
