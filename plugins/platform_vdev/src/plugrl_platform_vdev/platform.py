"""The platform ``vdev``: all that a vendor has to write when torch knows the device."""

from __future__ import annotations

from plugrl.platforms.generic import TorchAcceleratorPlatform
from plugrl_platform_vdev.collectives import BACKEND, DEVICE
from plugrl_platform_vdev.settings import MASK_VARIABLE, VARIABLES


class VdevPlatform(TorchAcceleratorPlatform):
    """A device for tests: its memory is the host's, everything else is as on an accelerator."""

    # Imported on the first use of the device: it builds the device, or loads it, and adds torch.vdev.
    extension = "plugrl_platform_vdev.device"

    @property
    def device_name(self) -> str:
        """``"vdev"``."""
        return DEVICE

    @property
    def vendor_name(self) -> str:
        """``"plugrl"``."""
        return "plugrl"

    def communication_backend_name(self) -> str:
        """``"vccl"``."""
        return BACKEND

    def visible_devices_envvar(self) -> str:
        """``"VDEV_VISIBLE_DEVICES"``."""
        return MASK_VARIABLE

    def ray_resource_name(self) -> str:
        """``"VDEV"``, which Ray does not know by itself."""
        return "VDEV"

    def forward_env_vars(self) -> list[str]:
        """The variables of the device, so that workers have the driver's devices, faults and logs."""
        return list(VARIABLES)

    def offered_capabilities(self, declared: tuple[str, ...]) -> tuple[str, ...]:
        """The manifest speaks for the C++ build; the Python build takes out what it lacks."""
        if getattr(self.device_module, "BUILD", "cpp") != "python":
            return declared
        from plugrl_platform_vdev.python_build import LACKS

        return tuple(name for name in declared if name not in LACKS)

    def sdk_version(self) -> str:
        """The build that serves this process: ``"vdev cpp"`` or ``"vdev python"``."""
        return f"vdev {getattr(self.device_module, 'BUILD', 'cpp')}"
