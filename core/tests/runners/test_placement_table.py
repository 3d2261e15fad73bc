"""`plugrl config placement`: where every process would run, from the configuration alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.config.schema import RunConfig
from plugrl.runners.placement_table import placement_table
from plugrl.runtime.placement import PlacementError

GROUPS = [
    {
        "label": "big", "node_ranks": "0-1",
        "env_configs": [{"node_ranks": 1, "env_vars": [{"A": 1}, {"B": 2}], "python_interpreter_path": "/opt/python"}],
    },
    {"label": "small", "node_ranks": 2},
]  # fmt: skip


def config(placement: dict[str, Any], **cluster: Any) -> RunConfig:
    section = {"component_placement": placement, **cluster}
    return RunConfig.model_validate({"platform": "cpu", "cluster": section, "algorithm": {"adv_estimator": "grpo"}})


def test_every_process_has_a_row_with_its_group_and_environment() -> None:
    placed = {"actor": {"node_group": "big", "placement": "1-2"}, "rollout": {"node_group": "small", "placement": 0}}
    table = placement_table(config(placed, num_nodes=3, node_groups=GROUPS), "train", devices=2)
    assert table.assumed and table.title == "3 nodes (assumed), cpu devices: 2, 2, 2"
    assert [row.cells() for row in table.rows] == [
        ("actor", "0", "0", "1", "1", "big", "-", "-"),
        ("actor", "1", "1", "0", "2", "big", "A, B", "/opt/python"),
        ("rollout", "0", "2", "0", "4", "small", "-", "-"),
    ]
    again = table.as_json()["component_placement"]
    assert placement_table(config(again, num_nodes=3, node_groups=GROUPS), "train", devices=2).rows == table.rows


def test_the_components_are_those_of_the_command() -> None:
    tables = [placement_table(config({}), task) for task in ("train", "sft", "eval")]
    components = [{row.component for row in table.rows} for table in tables]
    assert components == [{"actor", "rollout"}, {"actor"}, {"rollout"}]
    assert not any(table.assumed for table in tables)


def test_what_follows_a_wrong_placement_is_not_reported_again() -> None:
    with pytest.raises(PlacementError) as caught:
        placement_table(config({"actor": "3-0"}), "train")
    assert [path for path, _, _ in caught.value.errors] == ["cluster.component_placement.actor"]


def test_the_command_prints_json_and_starts_no_ray(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"platform": "cpu", "data": {"source": "arithmetic"}, "model": {"path": "x"},
                                "reward": {"name": "exact_match"}, "rollout": {"n": 2},
                                "algorithm": {"adv_estimator": "grpo"},
                                "cluster": {"component_placement": {"actor": "0-1", "rollout": 2}}}))  # fmt: skip
    script = (
        "import sys; from plugrl.cli.app import run; code = run(sys.argv[1:]); "
        "import ray; assert not ray.is_initialized(); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "config", "placement", str(path), "--json", "--nodes", "2", "--devices", "2"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [(row["component"], row["node"], row["local_devices"]) for row in answer["processes"]] == [
        ("actor", 0, [0]), ("actor", 0, [1]), ("rollout", 1, [0]),
    ]  # fmt: skip
