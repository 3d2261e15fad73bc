"""The contract of a platform: one kind of accelerator, and how torch, Ray and collectives reach it.

Names and which members are abstract follow the development guide of verl's hardware plugins, so that a vendor's class
ports with small edits. A vendor normally derives from :class:`plugrl.platforms.generic.TorchAcceleratorPlatform`, which
answers most members from torch itself. This module imports no torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from plugrl.platforms.devices import device_uuid

_SMI_FOLDERS = ("/usr/bin", "/usr/local/bin")


class PlatformBase(ABC):
    """One kind of accelerator. An instance is stateless but for what torch itself keeps per process."""

    # ----------------------------------------------------------------- core device management
    @property
    @abstractmethod
    def device_name(self) -> str:
        """The torch device type, the argument of ``torch.device``."""

    @property
    @abstractmethod
    def vendor_name(self) -> str:
        """The vendor, unique among those that share a device type; with it the key of the engine look-up."""

    @property
    @abstractmethod
    def device_module(self) -> ModuleType:
        """The ``torch.<device>`` namespace; raises PlatformUnavailable when its extension is missing."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether devices are visible and usable in this process; fast, and never raises."""

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Whether this machine has the hardware; with the flag, also where no device is visible to the process."""
        return self.is_available()

    @abstractmethod
    def current_device(self) -> int:
        """Logical index of the device in use."""

    @abstractmethod
    def device_count(self) -> int:
        """Number of devices this process may use."""

    @abstractmethod
    def set_device(self, device_index: int) -> None:
        """Use the device at this logical index from now on; ValueError when there is no such device."""

    @abstractmethod
    def synchronize(self, device_index: int | None = None) -> None:
        """Wait until all work queued on the device (default: the current one) is done."""

    # ----------------------------------------------------------------- random numbers
    @abstractmethod
    def manual_seed(self, seed: int) -> None:
        """Seed the generator of the current device."""

    @abstractmethod
    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""

    def rng_state(self) -> Any:
        """Return the generator state of the current device, a byte tensor on the CPU."""
        return self.device_module.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        """Restore what :meth:`rng_state` returned."""
        self.device_module.set_rng_state(state)

    # ----------------------------------------------------------------- memory
    @abstractmethod
    def set_allocator_settings(self, settings: str) -> None:
        """Configure the allocator, such as ``"expandable_segments:True"``; does nothing where unsupported."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give unused cached memory back; called between rollout and training."""

    # ----------------------------------------------------------------- properties
    @abstractmethod
    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return (major, minor), or (None, None) where there is no such notion."""

    def preferred_dtype(self) -> str:
        """Return ``"bf16"`` where the device computes it fast, else ``"fp32"``; what ``precision: auto`` means."""
        return "fp32"

    # ----------------------------------------------------------------- communication
    @abstractmethod
    def communication_backend_name(self) -> str:
        """The backend of ``torch.distributed.init_process_group``."""

    @abstractmethod
    def visible_devices_envvar(self) -> str:
        """The variable that masks devices; an empty string when there is none."""

    def get_collective_module(self) -> Any:
        """Return the vendor's low-level collective module, None without one."""
        return None

    # ----------------------------------------------------------------- Ray
    @abstractmethod
    def ray_resource_name(self) -> str:
        """Ray's resource: ``"GPU"`` (built into Ray), a custom name, or an empty string when Ray counts none."""

    @abstractmethod
    def ray_noset_envvars(self) -> list[str]:
        """The ``RAY_EXPERIMENTAL_NOSET_*`` variables that keep Ray's hands off the mask; each is set to ``1``."""

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        """Return the options of a Ray actor that needs ``num_gpus`` devices (fractions allowed for ``"GPU"``)."""
        name = self.ray_resource_name()
        if not name:
            return {}
        return {"num_gpus": num_gpus} if name == "GPU" else {"resources": {name: num_gpus}}

    def supports_colocated_worker_groups(self) -> bool:
        """Whether several processes may share one device; then that many worker groups fit on it, otherwise one."""
        return True

    def forward_env_vars(self) -> list[str]:
        """Names of variables that workers need as the driver has them."""
        return []

    def worker_env_vars(self) -> dict[str, str]:
        """Return the variables that worker processes start with, unless the driver's environment has its own values."""
        return {}

    def preloads_workers(self) -> bool:
        """Whether workers may be forks of a process that has imported torch: its import touches no device here."""
        return False

    # ----------------------------------------------------------------- sharing between processes
    @abstractmethod
    def is_ipc_supported(self) -> bool:
        """Whether device memory can be shared with another process without a copy."""

    # ----------------------------------------------------------------- rollout
    def rollout_env_vars(self) -> dict[str, str]:
        """Return the variables a rollout engine is launched with."""
        return {}

    def get_device_uuid(self, device_id: int) -> str:
        """Return a unique name of the device at logical index ``device_id``.

        With a mask the resource name and the entry of the mask (``"GPU5"``), without one ``"GPU-0"``. Raises ValueError
        showing the mask when it is empty or too short.
        """
        mask = os.environ.get(self.visible_devices_envvar()) if self.visible_devices_envvar() else None
        return device_uuid(self.ray_resource_name() or self.device_name.upper(), device_id, mask)

    # ----------------------------------------------------------------- models and engines
    def apply_model_patches(self, model_type: str) -> None:
        """Replace operators of a model architecture; called by the core before a model is built."""
        return None

    def generic_engine_vendor(self) -> str | None:
        """Vendor whose engines of the same device type also run here, for devices that imitate another vendor's."""
        return None

    # ----------------------------------------------------------------- conformance
    def offered_capabilities(self, declared: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of the manifest's capabilities this installation has: a build without some of them says so."""
        return declared

    def sdk_version(self) -> str:
        """Return the version of the vendor's SDK or driver for records; empty when it is unknown."""
        return ""

    # ----------------------------------------------------------------- profiling
    @abstractmethod
    def nvtx_range(self, msg: str) -> AbstractContextManager[Any]:
        """Return a context that marks a range for the profiler."""

    @abstractmethod
    def profiler_start(self) -> None:
        """Start the device's profiler; does nothing where unsupported."""

    @abstractmethod
    def profiler_stop(self) -> None:
        """Stop the device's profiler; does nothing where unsupported."""

    # ----------------------------------------------------------------- low level
    @abstractmethod
    def cudart(self) -> Any:
        """Return the vendor's runtime API object, None where there is none."""

    @staticmethod
    def check_smi_command(cmd: str, timeout_s: float = 10.0) -> bool:
        """Run a vendor's management command; True only when it is found and exits with 0 within ``timeout_s``."""
        path = shutil.which(cmd) or _in_usual_folders(cmd)
        if path is None:
            return False
        try:
            done = subprocess.run(
                [path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def _in_usual_folders(cmd: str) -> str | None:
    for folder in _SMI_FOLDERS:
        path = os.path.join(folder, cmd)
        if os.access(path, os.X_OK):
            return path
    return None
