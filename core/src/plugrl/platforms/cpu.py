"""The built-in platform: the host's processor, cut into virtual devices so that placement works on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from plugrl.environment import read_environment
from plugrl.platforms.base import PlatformBase

DEFAULT_DEVICES = 8
# By default glibc hands a step's tensors back to the kernel, and the next step faults them in again page by page, which
# can cost more than the arithmetic. Here tensors stay in the heap, and the heap in huge pages where they are allowed.
_ALLOCATOR_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_FAST_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})


class CpuPlatform(PlatformBase):
    """The processor as a platform: gloo, no accelerator resource, ``PLUGRL_CPU_DEVICES`` virtual devices (8).

    A virtual device is a slot: it isolates nothing, but ranks, placement and locks treat it like a real one.
    """

    def __init__(self) -> None:
        self._device = 0

    # ----------------------------------------------------------------- core device management
    @property
    def device_name(self) -> str:
        """``"cpu"``."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """``"cpu"``: engines for any processor are registered under it or, better, for any device."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """``torch.cpu``."""
        return torch.cpu

    def is_available(self) -> bool:
        """True: there is always a processor."""
        return True

    def current_device(self) -> int:
        """The virtual device this process works on."""
        return self._device

    def device_count(self) -> int:
        """Number of virtual devices of this machine."""
        count = read_environment().cpu_devices
        return DEFAULT_DEVICES if count is None else count

    def set_device(self, device_index: int) -> None:
        """Work on the virtual device ``device_index``; ValueError when there is none."""
        if not 0 <= device_index < self.device_count():
            raise ValueError(
                f"No virtual device {device_index}: there are {self.device_count()}, set by PLUGRL_CPU_DEVICES."
            )
        self._device = device_index

    def synchronize(self, device_index: int | None = None) -> None:
        """Return at once: work on the processor is synchronous."""

    # ----------------------------------------------------------------- random numbers
    def manual_seed(self, seed: int) -> None:
        """Seed torch's generator, which all virtual devices of a process share."""
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.default_generator.manual_seed(seed)

    def rng_state(self) -> torch.Tensor:
        """Return the state of torch's generator, uint8."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Restore what :meth:`rng_state` returned."""
        torch.set_rng_state(state)

    # ----------------------------------------------------------------- memory
    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the processor's allocator has no settings."""

    def empty_cache(self) -> None:
        """Do nothing: the processor's allocator caches nothing of its own."""

    # ----------------------------------------------------------------- properties
    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """(None, None)."""
        return (None, None)

    def preferred_dtype(self) -> str:
        """``"bf16"`` when the processor has instructions for it; emulated bf16 is slower than fp32."""
        return "bf16" if has_fast_bf16() else "fp32"

    # ----------------------------------------------------------------- communication
    def communication_backend_name(self) -> str:
        """``"gloo"``."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """An empty string: nothing masks virtual devices."""
        return ""

    # ----------------------------------------------------------------- Ray
    def ray_resource_name(self) -> str:
        """An empty string: Ray counts no resource for virtual devices."""
        return ""

    def ray_noset_envvars(self) -> list[str]:
        """No variable."""
        return []

    def worker_env_vars(self) -> dict[str, str]:
        """Return settings of glibc's allocator, which other C libraries ignore."""
        return dict(_ALLOCATOR_VARIABLES)

    def preloads_workers(self) -> bool:
        """True."""
        return True

    # ----------------------------------------------------------------- sharing, profiling, low level
    def is_ipc_supported(self) -> bool:
        """False: there is no device memory; host memory is shared by the runtime on every platform."""
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Mark a range that ``torch.profiler`` shows."""
        with torch.profiler.record_function(msg):
            yield

    def profiler_start(self) -> None:
        """Do nothing: ``torch.profiler`` records the processor by itself."""

    def profiler_stop(self) -> None:
        """Do nothing."""

    def cudart(self) -> Any:
        """None."""
        return None


def has_fast_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the kernel reports bf16 arithmetic for this processor; False where it reports nothing."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    lines = (line.partition(":") for line in text.splitlines())
    return any(key.strip() == "flags" and _FAST_BF16_FLAGS & set(value.split()) for key, _, value in lines)
