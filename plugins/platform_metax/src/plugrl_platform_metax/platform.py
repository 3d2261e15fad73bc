"""How torch, Ray and collectives reach the devices; what is not said here is answered by torch itself."""

from __future__ import annotations

from plugrl.platforms.generic import TorchAcceleratorPlatform


class MetaxPlatform(TorchAcceleratorPlatform):
    """MetaX GPUs. torch reaches them as ``torch.cuda``; only ``mx-smi`` tells them from the devices they imitate."""

    smi_command = "mx-smi"

    @property
    def device_name(self) -> str:
        """``"cuda"``."""
        return "cuda"

    @property
    def vendor_name(self) -> str:
        """``"metax"``."""
        return "metax"

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """``mx-smi`` decides, with the flag and without: torch says the same on the devices that are imitated."""
        return super().is_platform_available(use_smi_check=True) and (use_smi_check or self.is_available())

    def communication_backend_name(self) -> str:
        """``"nccl"``."""
        return "nccl"

    def visible_devices_envvar(self) -> str:
        """``"CUDA_VISIBLE_DEVICES"``."""
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """``"GPU"``, built into Ray."""
        return "GPU"

    def generic_engine_vendor(self) -> str:
        """``"nvidia"``: its engines run here too, where there is none of metax itself."""
        return "nvidia"

    def is_ipc_supported(self) -> bool:
        """True."""
        return True
