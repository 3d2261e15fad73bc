"""How a worker takes its device."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

pytest.importorskip("torch")

from plugrl.platforms.cpu import CpuPlatform
from plugrl.platforms.devices import DeviceError
from plugrl.runtime.device_assignment import AssignedDevice, DeviceTaker
from plugrl.runtime.failure import RankInfo
from plugrl.runtime.host import Host


class Masked(CpuPlatform):
    """Boards behind a mask."""

    extension = "acme_sdk"
    seen = 1
    stuck = False

    def device_count(self) -> int:
        """As many as torch is made to see."""
        return self.seen

    def visible_devices_envvar(self) -> str:
        """A variable of the test."""
        return "ACME_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """A resource of the test."""
        return "ACME"

    def current_device(self) -> int:
        """The device that was set, or the wrong one."""
        return 3 if self.stuck else super().current_device()


GIVEN = AssignedDevice(index=0, physical_id="6", variable="ACME_VISIBLE_DEVICES")


def host(**members: object) -> Host:
    """A host that has chosen its platform, without the Ray actor around it."""
    made = Host.__new__(Host)
    made._info = RankInfo(group="g", rank=1, pid=7, node_id="n", node_ip="10.0.0.1")
    made._platform = type("Made", (Masked,), members)()
    return made


def test_a_failure_names_the_device_by_its_entry_in_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "6")
    made = host()
    made._take_device(DeviceTaker(GIVEN))
    assert made._platform.current_device() == 0
    assert str(made.report()) == "worker group 'g' rank 1 (node 10.0.0.1, pid 7, device ACME6)"


def test_a_mask_that_hides_devices_from_torch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "6")
    with pytest.raises(DeviceError, match=r"ACME_VISIBLE_DEVICES=6 names 1 devices, but torch sees 3"):
        host(seen=3)._take_device(DeviceTaker(GIVEN))


def test_a_mask_that_was_changed_is_set_again_unless_the_sdk_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "0,1,2")
    taken = DeviceTaker(GIVEN).take(host()._platform)
    assert os.environ["ACME_VISIBLE_DEVICES"] == "6" and not taken.set_at_start and not taken.sdk_was_loaded
    monkeypatch.setitem(sys.modules, "acme_sdk", ModuleType("acme_sdk"))
    assert DeviceTaker(GIVEN).take(host()._platform).sdk_was_loaded
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "0,1,2")
    taker = DeviceTaker(GIVEN)
    with pytest.raises(DeviceError, match=r"ACME_VISIBLE_DEVICES was '0,1,2' instead of '6'.* acme_sdk was loaded"):
        taker.take(host()._platform)


def test_a_platform_that_uses_another_device_than_it_was_told_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "6")
    with pytest.raises(DeviceError, match=r"set_device\(0\) of platform cpu left device 3 in use"):
        host(stuck=True)._take_device(DeviceTaker(GIVEN))
