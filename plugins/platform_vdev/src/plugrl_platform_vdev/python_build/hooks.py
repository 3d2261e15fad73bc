"""What torch asks of a backend in Python; the few questions that it lets Python answer."""

from __future__ import annotations

import torch

from plugrl_platform_vdev.python_build import state


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """Whether there is a device."""

    def is_available(self) -> bool:
        """Whether a device is visible."""
        return state.device_count() > 0

    def has_primary_context(self, dev_id: int) -> bool:
        """True: nothing has to be set up for a device."""
        return True

    def is_built(self) -> bool:
        """True."""
        return True


class Guard(torch._C._acc.DeviceGuard):
    """The type of the device; torch keeps the current one elsewhere."""

    def type_(self) -> object:
        """PrivateUse1, under whose key ``vdev`` runs."""
        return torch._C._autograd.DeviceType.PrivateUse1
