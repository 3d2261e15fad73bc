"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

from plugrl.platforms.generic import TorchAcceleratorPlatform


class MluPlatform(TorchAcceleratorPlatform):
    """Cambricon MLUs, by ``torch_mlu``."""

    extension = "torch_mlu"

    @property
    def device_name(self) -> str:
        """``"mlu"``."""
        return "mlu"

    @property
    def vendor_name(self) -> str:
        """``"cambricon"``."""
        return "cambricon"

    def communication_backend_name(self) -> str:
        """``"cncl"``."""
        return "cncl"

    def visible_devices_envvar(self) -> str:
        """``"MLU_VISIBLE_DEVICES"``."""
        return "MLU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """``"GPU"``, built into Ray."""
        return "GPU"

    def is_ipc_supported(self) -> bool:
        """True."""
        return True
