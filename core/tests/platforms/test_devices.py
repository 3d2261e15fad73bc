"""Masks, logical indices, names and counts of devices (rules DV-1 to DV-9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plugrl.platforms import Available, PlatformBase
from plugrl.platforms.devices import (
    DeviceError,
    check_distinct,
    check_mask_length,
    groups_per_device,
    logical_index,
)
from plugrl.platforms.visible import visible_ids
from plugrl.registry import Registry

Make = Callable[..., type[PlatformBase]]


@pytest.mark.parametrize(
    ("resource", "amount", "options"),
    [
        ("GPU", 1, {"num_gpus": 1}),
        ("GPU", 0.25, {"num_gpus": 0.25}),
        ("ANVIL", 2, {"resources": {"ANVIL": 2}}),
        ("", 1, {}),
    ],
)
def test_ray_options(resource: str, amount: float, options: dict[str, object], make_platform: Make) -> None:
    assert make_platform(resource=resource)().ray_resource_options(amount) == options


@pytest.mark.parametrize(
    ("reported", "mask", "index"),
    [(5, "4,5,6,7", 1), ("5", " 4, 5 ", 1), (3, None, 3), ("GPU-ab", "GPU-cd,GPU-ab", 1)],
)
def test_logical_index(reported: int | str, mask: str | None, index: int) -> None:
    assert logical_index(reported, mask) == index


@pytest.mark.parametrize(
    ("reported", "mask", "text"),
    [(3, "4,5", r"'3'.*'4,5'"), (0, "", "no devices"), (0, " , ", "no devices"), ("GPU-ab", None, "not set")],
)
def test_logical_index_errors_show_both(reported: int | str, mask: str | None, text: str) -> None:
    with pytest.raises(DeviceError, match=text):
        logical_index(reported, mask, "ACME_VISIBLE")


def test_uuid_with_and_without_a_mask(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = make_platform()()
    monkeypatch.delenv("FAKE_VISIBLE_DEVICES", raising=False)
    assert platform.get_device_uuid(1) == "GPU-1"
    assert make_platform(resource="TPU")().get_device_uuid(1) == "TPU-1"
    monkeypatch.setenv("FAKE_VISIBLE_DEVICES", "4,5")
    assert platform.get_device_uuid(1) == "GPU5"
    with pytest.raises(DeviceError, match="4,5"):
        platform.get_device_uuid(2)
    monkeypatch.setenv("FAKE_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match="''"):
        platform.get_device_uuid(0)


def test_mask_of_another_length_names_variable_and_both_numbers(make_platform: Make) -> None:
    check_mask_length(make_platform()(), "0,1,2,3")
    check_mask_length(make_platform()(), None)
    with pytest.raises(DeviceError, match=r"FAKE_VISIBLE_DEVICES=0,1 .*2.*4"):
        check_mask_length(make_platform()(), "0,1")


def test_visible_devices_are_those_of_the_mask_then_of_the_probe(
    make_platform: Make, platforms: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = make_platform(count=9)()
    platforms.register("acme", type(platform), meta={"probe": lambda: Available(3), "priority": 0})
    platforms.register("uncounted", make_platform(), meta={"probe": Available, "priority": 0})
    monkeypatch.delenv("FAKE_VISIBLE_DEVICES", raising=False)
    assert visible_ids(platform, "acme") == ("0", "1", "2")
    assert len(visible_ids(platform, "uncounted")) == len(visible_ids(platform, "")) == 9
    monkeypatch.setenv("FAKE_VISIBLE_DEVICES", " 2, 5,GPU-ab ")
    assert visible_ids(platform, "acme") == ("2", "5", "GPU-ab")
    for mask, text in [("", "FAKE_VISIBLE_DEVICES is empty"), ("-1,0", "is empty"), ("2,5,2", "names 2 twice")]:
        monkeypatch.setenv("FAKE_VISIBLE_DEVICES", mask)
        with pytest.raises(DeviceError, match=text):
            visible_ids(platform, "acme")


def test_groups_share_a_device_only_where_it_can_be_shared(make_platform: Make) -> None:
    exclusive = make_platform(supports_colocated_worker_groups=lambda self: False)
    assert groups_per_device(make_platform()(), 3) == 3
    assert groups_per_device(exclusive(), 3) == 1


def test_ranks_on_a_node_hold_distinct_devices() -> None:
    check_distinct([("a", 0, 0), ("a", 1, 1), ("b", 2, 0)])
    with pytest.raises(DeviceError, match=r"1, 2 on node a.*device 1"):
        check_distinct([("a", 0, 0), ("a", 1, 1), ("a", 2, 1)])
