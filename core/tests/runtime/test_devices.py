"""Devices of real Ray nodes: each worker sees its own alone, and a lack of them is explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.testing.ray_nodes import RayNode, ray_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DRIVER = Path(__file__).with_name("device_driver.py")
DEADLINE_S = 280
COMMON = {"RLINF_EXT_MODULE": "plugrl.testing.boards", "PLUGRL_PLUGINS": ""}
NODES = (
    RayNode(name="first", env={"BOARD_VISIBLE_DEVICES": "2, 5"}, resources={"BOARD": 2}),
    RayNode(name="second", env={"BOARD_COUNT": "4"}, resources={"BOARD": 1}),
)


def drive(*arguments: str, **variables: str) -> dict[str, Any]:
    """Run the driver and return what it found."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), *arguments],
        env={**os.environ, **COMMON, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Any]]:
    """What a driver finds in a cluster of two nodes with masks of their own; it has another one itself."""
    with ray_nodes(NODES) as address:
        yield drive(address, BOARD_VISIBLE_DEVICES="7")


def test_every_worker_sees_its_own_device_alone_and_before_the_sdk_was_loaded(cluster: dict[str, Any]) -> None:
    assert cluster["nodes"] == [["first (127.0.0.1)", ["2", "5"]], ["second (127.0.0.1)", ["0"]]]
    assert [(row["node"].split()[0], row["mask"], row["name"]) for row in cluster["first"]] == [
        ("first", "2", "BOARD2"), ("first", "5", "BOARD5"), ("second", "0", "BOARD0"),
    ]  # fmt: skip
    for row in cluster["first"] + cluster["second"]:
        assert (row["index"], row["physical_id"], row["variable"]) == (0, row["mask"], "BOARD_VISIBLE_DEVICES")
        assert row["set_at_start"] and row["sdk"] and not row["sdk_was_loaded"]


def test_workers_of_two_groups_and_of_one_share_a_device(cluster: dict[str, Any]) -> None:
    assert [row["mask"] for row in cluster["second"]] == ["5", "5"]


def test_the_mask_belongs_to_the_core(cluster: dict[str, Any]) -> None:
    assert "DeviceError: BOARD_VISIBLE_DEVICES cannot be given to workers" in cluster["own mask"]


def test_an_exclusive_device_is_refused_to_a_second_process_at_once(cluster: dict[str, Any]) -> None:
    assert "Device 0 of node first (127.0.0.1) belongs to worker group 'owner'" in cluster["again"]
    assert "Ranks 0, 1 on node first (127.0.0.1) all hold device 1" in cluster["twice"]


def test_missing_devices_are_explained_by_node(cluster: dict[str, Any]) -> None:
    text = cluster["missing"]
    assert text.startswith("DeviceError: 6 BOARD are wanted, Ray has 3 in all and ")
    first, second = text.splitlines()[2:4]
    assert first.startswith("first (127.0.0.1) ") and "BOARD_VISIBLE_DEVICES=2, 5" in first
    assert "second (127.0.0.1)  BOARD" in second and "BOARD_VISIBLE_DEVICES unset" in second
    assert "held by this run's first, second" in first


def test_a_wait_for_devices_that_other_jobs_hold_ends_with_the_table(cluster: dict[str, Any]) -> None:
    text = cluster["taken"]
    assert text.startswith("WorkerTimeout: No answer after 3 s from worker group 'late' rank 0, 1 in setup()")
    assert "2 BOARD are wanted, Ray has 3 in all and 0 free." in text
    assert "other jobs hold them" in text and "ray list actors" in text.splitlines()[-1]


def test_a_cluster_of_other_hardware_is_refused_when_it_is_joined(cluster: dict[str, Any]) -> None:
    text = cluster["other"]
    assert text.startswith("DeviceError: 1 PLANK are wanted, Ray has 0 in all and 0 free.")
    assert text.count("started without the resource PLANK") == 2 and "--resources='{\"PLANK\": 8}'" in text


def test_a_local_ray_offers_the_drivers_own_devices() -> None:
    found = drive(BOARD_VISIBLE_DEVICES="7,GPU-ab,1")
    assert [node[1] for node in found["nodes"]] == [["7", "GPU-ab", "1"]]
    assert [row["name"] for row in found["first"]] == ["BOARD7", "BOARDGPU-ab", "BOARD1"]
    assert "BOARD_VISIBLE_DEVICES=7,GPU-ab,1" in found["missing"]
    assert found["empty"].startswith("DeviceError: BOARD_VISIBLE_DEVICES is empty")
