"""A platform over what torch offers for every accelerator, so that a vendor writes about forty lines.

A vendor's class names its device type, vendor, communication backend and mask variable, and overrides what differs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from plugrl.errors import PlatformUnavailable
from plugrl.platforms.base import PlatformBase

logger = logging.getLogger(__name__)


class TorchAcceleratorPlatform(PlatformBase):
    """Answers every member from ``torch.<device>`` but ``device_name``, ``vendor_name``, ``communication_backend_name``
    and ``visible_devices_envvar``."""

    extension: str | None = None
    """Module that adds ``torch.<device>`` when imported; None when torch itself has it."""

    smi_command: str | None = None
    """Management command whose success means that the hardware is there, also where no device is visible."""

    # ----------------------------------------------------------------- core device management
    @property
    def device_module(self) -> ModuleType:
        """``torch.<device>``, after the extension was imported. Raises PlatformUnavailable when it is missing."""
        try:
            if self.extension is not None:
                importlib.import_module(self.extension)
            return torch.get_device_module(self.device_name)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            raise PlatformUnavailable(
                f"torch.{self.device_name} cannot be used: {error}. Install the torch build or extension of its vendor."
            ) from error

    def is_available(self) -> bool:
        """Whether torch sees a device of this type in this process."""
        try:
            return bool(self.device_module.is_available())
        except PlatformUnavailable:
            return False

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Ask the management command if there is one and the flag is set, otherwise torch."""
        if use_smi_check and self.smi_command is not None:
            return self.check_smi_command(self.smi_command)
        return self.is_available()

    def current_device(self) -> int:
        """Logical index of the device in use."""
        return int(self.device_module.current_device())

    def device_count(self) -> int:
        """Number of devices that torch sees."""
        return int(self.device_module.device_count())

    def set_device(self, device_index: int) -> None:
        """Use the device at this index; ValueError when there is no such device."""
        if not 0 <= device_index < self.device_count():
            raise ValueError(f"No {self.device_name} device {device_index}: torch sees {self.device_count()}.")
        self.device_module.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait for all work queued on the device."""
        if device_index is None:
            self.device_module.synchronize()
        else:
            self.device_module.synchronize(device_index)

    # ----------------------------------------------------------------- random numbers
    def manual_seed(self, seed: int) -> None:
        """Seed the generator of the current device."""
        self.device_module.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""
        self.device_module.manual_seed_all(seed)

    # ----------------------------------------------------------------- memory
    def set_allocator_settings(self, settings: str) -> None:
        """Hand the settings to torch's allocator; where it takes none they are ignored with a log line."""
        memory = getattr(self.device_module, "memory", None)
        configure = getattr(memory, "_set_allocator_settings", None)
        if configure is None:
            logger.info("torch.%s takes no allocator settings; ignoring %s.", self.device_name, settings)
            return
        configure(settings)

    def empty_cache(self) -> None:
        """Give unused cached memory back, where torch caches any."""
        release = getattr(self.device_module, "empty_cache", None)
        if release is not None:
            release()

    # ----------------------------------------------------------------- properties
    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return torch's (major, minor), or (None, None) where the device has no such pair."""
        ask = getattr(self.device_module, "get_device_capability", None)
        answer = ask(device_index) if ask is not None else None
        if isinstance(answer, tuple) and len(answer) == 2:
            return answer
        return (None, None)

    def preferred_dtype(self) -> str:
        """``"bf16"`` where torch says that the device supports it."""
        supported = getattr(self.device_module, "is_bf16_supported", None)
        return "bf16" if supported is not None and supported() else "fp32"

    # ----------------------------------------------------------------- Ray
    def ray_resource_name(self) -> str:
        """``"GPU"``, which needs no set-up of the cluster; override it for a custom resource."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """The one that keeps Ray from setting this platform's mask."""
        variable = self.visible_devices_envvar()
        return [f"RAY_EXPERIMENTAL_NOSET_{variable}"] if variable else []

    def preloads_workers(self) -> bool:
        """Whether the device comes with an extension: then torch alone touches none, and each worker loads it later."""
        return self.extension is not None

    # ----------------------------------------------------------------- conformance
    def sdk_version(self) -> str:
        """Name and version of the distribution that brings the extension; empty when torch needs none."""
        name = (self.extension or "").partition(".")[0]
        try:
            return f"{name} {importlib.metadata.version(name)}" if name else ""
        except importlib.metadata.PackageNotFoundError:
            return ""

    # ----------------------------------------------------------------- sharing, profiling, low level
    def is_ipc_supported(self) -> bool:
        """False: a vendor whose device memory can be shared says so."""
        return False

    def nvtx_range(self, msg: str) -> AbstractContextManager[Any]:
        """Mark a range that ``torch.profiler`` shows."""
        return torch.profiler.record_function(msg)

    def profiler_start(self) -> None:
        """Do nothing: a vendor with a profiler of its own starts it here."""

    def profiler_stop(self) -> None:
        """Do nothing."""

    def cudart(self) -> Any:
        """None."""
        return None
