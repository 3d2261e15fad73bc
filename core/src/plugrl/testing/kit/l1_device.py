"""L1, devices: they are counted, chosen, waited for, and kept apart."""

from __future__ import annotations

from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import Context


@check("L1.devices.usable", capability="platform.devices", gate=True, fix="device_count must match what torch sees.")
def usable(kit: Context) -> str:
    """There is a device, and arithmetic on it gives what it should."""
    import torch

    count = kit.platform.device_count()
    expect(count >= 1, "the platform shows no device", got=count, expected="at least 1")
    expect(kit.platform.is_available(), "is_available() says no although there are devices")
    total = (torch.ones(4, device=kit.device()) * 3).sum().item()
    expect_equal(total, 12.0, "the sum of four threes")
    return f"{count} x {kit.platform.device_name}"
