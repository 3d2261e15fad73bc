"""The device: which one, its operators, its memory and its random numbers; each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_cases import CASES
from vdev_process import Failed, run

MIB = str(1 << 20)


# --------------------------------------------------------------------- operators
def test_operators_agree_with_the_host() -> None:
    assert run("deviations", sorted(CASES)) == {}


def test_what_does_not_fit_is_refused_by_name() -> None:
    found = run("refusals")
    both = "Expected all tensors to be on the same device, but found at least two devices, vdev:0 and "
    for name in ("two devices", "two devices, product"):
        assert both + "vdev:1!" in found[name], name
    for name in ("host", "host first", "host in a list"):
        assert both + "cpu!" in found[name], name
    assert "indices" in found["host's tensor, device's indices"]
    indices = {"factory": 7, "moved": 2, "chosen": 2, "context": 5, "synchronized": 2, "memory": 3}
    for name, index in indices.items():
        assert f"RuntimeError: vdev:{index} does not exist: 2 device(s) are visible" in found[name], name
    assert "vdev:9 does not exist" in found["generator"]
    assert "'vdev'" in found["host's generator"] and "'cpu'" in found["host's generator"]
    assert "vdev:1" in found["other device's generator"]
    assert "16 bytes" in found["state"]
    assert found["numpy"].startswith("TypeError")
    assert found["another type"].startswith("ValueError: Expected a vdev device, got cpu")
    assert found["shape"].startswith("RuntimeError") and "2x2 and 3x2" in found["shape"]


def test_autocast_casts_what_it_should() -> None:
    found = run("autocast")
    assert {name for name, dtype in found.items() if dtype == "torch.bfloat16"} == {"linear", "sum with a type"}
    assert (found["double"], found["fp16"]) == ("torch.float64", "torch.float16")
    assert {found[name] for name in ("softmax", "sum", "widest", "gradient", "outside")} == {"torch.float32"}


# --------------------------------------------------------------------- memory
def test_memory_is_counted_to_the_byte_and_per_device() -> None:
    found = run("accounting")
    assert found["empty"] == (0, 4000)
    assert found["result"] == found["view keeps"] == 8000
    assert found["freed"] == (4000, 8000)
    assert found["new peak"] == 4000
    assert (found["grown"], found["emptied"]) == (8000, 0)
    assert found["filled"] == (8000, 2000.0)
    assert found["accelerator"]
    assert found["free"] == (8000, True)
    assert found["odd"] == 3


def test_more_than_the_budget_is_out_of_memory_and_leaves_the_device_usable() -> None:
    found = run("out_of_memory", VDEV_MEMORY_BYTES=MIB)
    for name in ("allocation", "result", "grown"):
        assert found[name].startswith("OutOfMemoryError: vdev out of memory. Tried to allocate"), name
        assert "Device 1 has a total capacity of 1024.00 KiB of which 512.00 KiB is free" in found[name], name
    assert (found["other"], found["after"], found["ooms"]) == (262144, 4.0, 3)


def test_pinned_memory_says_so() -> None:
    expected = {"plain": False, "pinned": True, "part": True, "made": True, "arrives": True}
    assert run("pinned") == expected


# --------------------------------------------------------------------- random numbers
def test_every_draw_comes_from_the_generator_of_its_device() -> None:
    found = run("random_numbers")
    assert found.pop("host untouched") and found.pop("other device untouched")
    assert {name: pair for name, pair in found.items() if pair != (True, True)} == {}


def test_states_and_generators() -> None:
    found = run("generators")
    assert found["state"] == ("cpu", 16, 11)
    assert found["restored"] and found["own"] and found["recomputed dropout"]
    assert found["seeds"] == {11}
    assert not found["devices differ"], "one seed on all devices gives one state"


# --------------------------------------------------------------------- devices
@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, (2, [0, 1], True, ["VDEV-0", "VDEV-1"])),
        ({"VDEV_DEVICES": "4", "VDEV_VISIBLE_DEVICES": "3, 1"}, (2, [3, 1], True, ["VDEV-3", "VDEV-1"])),
        ({"VDEV_VISIBLE_DEVICES": ""}, (0, [], False, [])),
    ],
)
def test_mask_says_which_devices_there_are(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    assert run("visible", **variables) == expected


def test_mask_that_names_no_device_is_refused() -> None:
    with pytest.raises(Failed, match="ValueError: VDEV_VISIBLE_DEVICES=0,2: '2' is none of the devices 0 to 1"):
        run("visible", VDEV_VISIBLE_DEVICES="0,2")


def test_current_device_is_of_a_thread_and_ends_with_its_block() -> None:
    expected = {
        "untouched": False,
        "chosen": (1, "vdev:1", True),
        "inside": (0, 0),
        "default": "vdev:0",
        "of the host": 1,
        "thread": 0,
        "after": 1,
    }
    assert run("current_devices") == expected


def test_streams_and_events() -> None:
    found = run("streams")
    assert "cannot be used on a stream of vdev:1" in found.pop("refused")
    assert found == {"default": True, "inside": (True, 1), "outside": True, "done": (True, True, True)}


def test_saved_tensors_come_back_to_their_device(tmp_path: Path) -> None:
    found = run("saved", str(tmp_path))
    assert found["native"] == ("vdev:1", [0.0, 1.0, 2.0])
    assert (found["shared"], found["host"], found["moved"]) == (True, "cpu", "vdev:0")
    assert (found["pickle"], found["deepcopy"]) == ("vdev:1", "vdev:1")
    assert found["repr"] == "tensor([0., 1., 2.], device='vdev:1')"


def test_device_survives_a_fork() -> None:
    assert run("forked") == (True, 6)
