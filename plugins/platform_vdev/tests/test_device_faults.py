"""Faults on demand, strict mode and the log of operators; each in a process of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from vdev_process import run

from plugrl.platforms.probe import Available, Unavailable
from plugrl_platform_vdev.configuration import declared_operators
from plugrl_platform_vdev.probe import probe


def test_allocation_that_is_to_fail_does_and_the_next_succeeds() -> None:
    errors = run("allocations", [10, 10, 10, 10], VDEV_FAULT="oom@3")
    assert [bool(text) for text in errors] == [False, False, True, False]
    errors = run("allocations", [100, 101, 100], VDEV_FAULT="oom@100bytes")
    assert [text.partition(":")[0] for text in errors] == ["", "OutOfMemoryError", ""]


def test_leak_is_memory_that_stays_counted() -> None:
    assert run("freed_bytes") == 0
    assert run("freed_bytes", VDEV_FAULT="memory_leak") == 400


def test_stale_generator_gives_the_same_twice() -> None:
    assert not run("stale_draws")
    assert run("stale_draws", VDEV_FAULT="stale_rng")


def test_lost_device_stays_lost() -> None:
    errors = run("calls_until_lost", 6, VDEV_FAULT="device_lost@4")
    assert [bool(text) for text in errors] == [False, True, True, True, True, True], "two operators made the tensor"
    assert "RuntimeError: vdev:0 is lost: operator aten::add cannot run" in errors[-1]


def test_slow_device_is_slow_alone() -> None:
    assert run("seconds_of", "vdev:1", 50, VDEV_FAULT="slow@device1") >= 0.05
    assert run("seconds_of", "vdev:0", 50, VDEV_FAULT="slow@device1") < 0.05


def test_operator_that_is_missing_is_named_with_platform_and_plugin() -> None:
    text = run("step", VDEV_FAULT="op_unsupported@aten::gelu,op_unsupported@aten::addmm")
    assert text.startswith("NotImplementedError: Platform vdev has no kernel for operator aten::addmm.")
    assert "plugrl-platform-vdev" in text and "VDEV_FAULT" in text


def test_strict_mode_knows_the_operators_of_a_training_step_and_refuses_others() -> None:
    assert run("step", VDEV_STRICT_OPS="1") == "done"
    found = run("deviations", ["AdamW", "spectra"], VDEV_STRICT_OPS="1")
    assert list(found) == ["spectra"]
    assert "no kernel for operator aten::_fft_r2c" in found["spectra"] and "VDEV_STRICT_OPS=1" in found["spectra"]


def test_declared_operators_are_sorted_and_told_once() -> None:
    text = (Path(__file__).parents[1] / "src" / "plugrl_platform_vdev" / "operators.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == sorted(set(lines)) and set(lines) == declared_operators()


def test_log_tells_operator_device_and_what_fell_back(tmp_path: Path) -> None:
    assert run("calls_until_lost", 2, VDEV_LOG=str(tmp_path / "logs")) == ["", ""]
    (file,) = (tmp_path / "logs").glob("operators-*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["device"] for line in lines} == {"vdev:0"}
    found = Counter((line["op"], line["fallback"]) for line in lines)
    assert found == {("aten::empty", False): 1, ("aten::fill_", True): 1, ("aten::add", True): 2}


@pytest.mark.parametrize(
    "variables, text",
    [
        ({"VDEV_FAULT": "init_fail"}, "RuntimeError: vdev: the driver cannot be initialised"),
        ({"VDEV_FAULT": "oom@soon"}, "ValueError: VDEV_FAULT=oom@soon: write oom@3"),
        ({"VDEV_FAULT": "slow@1s"}, "ValueError: VDEV_FAULT=slow@1s: write slow@device1"),
        ({"VDEV_FAULT": "out_of_luck"}, "ValueError: VDEV_FAULT: there is no fault 'out_of_luck'. There are: oom,"),
        ({"VDEV_MUTANT": "ninja"}, "ValueError: VDEV_MUTANT: there is no 'ninja'. There are: wrong_device_index,"),
        ({"VDEV_DEVICES": "two"}, "ValueError: VDEV_DEVICES must be a positive whole number, not 'two'"),
        ({"VDEV_DEVICES": "200"}, "RuntimeError: At most 127 devices can be made, not 200."),
    ],
)
def test_what_cannot_be_made_says_why(variables: dict[str, str], text: str) -> None:
    assert run("made", **variables).startswith(text)


def test_place_that_another_device_holds_is_named() -> None:
    assert "the device 'other' holds torch's place" in run("renamed_by_another")


def test_probe_answers_by_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDEV_DEVICES", "5")
    monkeypatch.setenv("VDEV_VISIBLE_DEVICES", "4,0,2")
    assert probe() == Available(3, "a device for tests, in host memory")
    monkeypatch.setenv("VDEV_VISIBLE_DEVICES", "")
    assert probe() == Unavailable("no device visible (VDEV_VISIBLE_DEVICES is empty)")
