"""How a worker takes its device."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from plugrl.platforms.cpu import CpuPlatform
from plugrl.platforms.devices import DeviceError
from plugrl.runtime.failure import RankInfo
from plugrl.runtime.host import Host


class Masked(CpuPlatform):
    """Three devices behind a mask."""

    def device_count(self) -> int:
        """Three."""
        return 3

    def visible_devices_envvar(self) -> str:
        """A variable of the test."""
        return "ACME_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """A resource of the test."""
        return "ACME"


def host() -> Host:
    """A host that has chosen its platform, without the Ray actor around it."""
    made = Host.__new__(Host)
    made._info = RankInfo(group="g", rank=1, pid=7, node_id="n", node_ip="10.0.0.1")
    made._platform = Masked()
    return made


def test_a_failure_names_the_device_by_its_entry_in_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "4,6,7")
    made = host()
    made._take_device(1)
    assert made._platform.current_device() == 1
    assert str(made.report()) == "worker group 'g' rank 1 (node 10.0.0.1, pid 7, device ACME6)"


def test_a_mask_that_hides_devices_from_torch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "4,6")
    with pytest.raises(DeviceError, match=r"ACME_VISIBLE_DEVICES=4,6 names 2 devices, but torch sees 3"):
        host()._take_device(1)
