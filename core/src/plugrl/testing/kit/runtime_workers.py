"""The workers that the checks of L4 launch: they say where they are, compute there, and die when told to."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch

from plugrl.plugins import current_ledger
from plugrl.runtime.worker import Worker


class PlacedWorker(Worker):
    """Says what device it has and what it sees."""

    process_group: ClassVar[bool] = False

    def place(self) -> dict[str, Any]:
        """Return the worker's device as the core gave it, as the platform has it, and as the hardware names itself."""
        given, platform, ledger = self.context.device, self.platform, current_ledger()
        assert given is not None and ledger is not None
        variable = platform.visible_devices_envvar()
        return {
            "rank": self.rank,
            "name": given.name,
            "given_index": given.index,
            "physical_id": given.physical_id,
            "set_at_start": given.set_at_start,
            "sdk": given.sdk,
            "sdk_was_loaded": given.sdk_was_loaded,
            "mask": os.environ.get(variable) if variable else None,
            "current": platform.current_device(),
            "count": platform.device_count(),
            "hardware": self._hardware(),
            "computed": self.compute(),
            "fingerprint": ledger.fingerprint,
        }

    def compute(self) -> float:
        """Return what the worker's device makes of 2 x 2 ones, times its rank + 1."""
        ones = torch.ones(2, 2, device=self._device())
        return float((ones @ ones * (self.rank + 1)).sum())

    def die(self) -> None:
        """End the process at once."""
        os._exit(7)

    def _hardware(self) -> str | None:
        """Return what identifies the hardware behind the current device, where torch offers such a thing."""
        ask = getattr(self.platform.device_module, "get_device_properties", None)
        found = getattr(ask(self.platform.current_device()), "uuid", None) if ask is not None else None
        return None if found is None else str(found)

    def _device(self) -> torch.device:
        if self.platform.device_name == "cpu":
            return torch.device("cpu")
        return torch.device(self.platform.device_name, self.platform.current_device())


class MeetingWorker(PlacedWorker):
    """As PlacedWorker, with a process group of the platform's backend."""

    process_group: ClassVar[bool] = True

    def sum_of_ranks(self) -> float:
        """Return the sum over ranks of rank + 1, reduced on the device."""
        import torch.distributed as dist

        value = torch.tensor([self.rank + 1.0]).to(self._device())
        dist.all_reduce(value)
        return float(value)
