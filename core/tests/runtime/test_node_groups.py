"""Node groups on real Ray nodes, two of a cluster or a local one: variables, interpreter and node of each worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.testing.ray_nodes import RayNode, ray_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DRIVER = Path(__file__).with_name("placement_driver.py")
DEADLINE_S = 700
AT_START = {name: "node" for name in ("ONE", "TWO", "THREE", "FOUR")} | {"CPATH": "/node:/both"}


def interpreter_with_our_packages(folder: Path) -> Path:
    """Make an environment that finds the packages of this one, and return its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    # The files of editable installations in there are read too, unlike those on PYTHONPATH.
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder / "bin" / "python"


def drive(address: str, interpreter: Path, **variables: str) -> dict[str, Any]:
    """Run the driver and return what it found."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), address, str(interpreter)],
        env={**os.environ, **AT_START, **variables, "PLUGRL_PLUGINS": "", "PLUGRL_CPU_DEVICES": "8"},
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    return {**answer, "prefix": str(interpreter.parent.parent)}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter_with_our_packages(tmp_path_factory.mktemp("interpreter"))


@pytest.fixture(scope="module")
def found(interpreter: Path) -> Iterator[dict[str, Any]]:
    """What a driver finds in a cluster whose head is told to be the second node."""
    nodes = (
        RayNode(name="head", env={**AT_START, "PLUGRL_NODE_RANK": "1"}),
        RayNode(name="other", env={**AT_START, "PLUGRL_NODE_RANK": "0"}),
    )
    changed = {"THREE": "driver", "FOUR": "driver", "CPATH": "/driver:/both", "RANK": "5", "WORLD_SIZE": "9"}
    with ray_nodes(nodes) as address:
        yield drive(address, interpreter, **changed)


def test_groups_of_a_local_node_have_their_own_variables_and_interpreter(interpreter: Path) -> None:
    answer = drive("", interpreter)
    (left,), (right,), (by_node,) = answer["left"], answer["right"], answer["nodes"]
    assert [left["env"][name] for name in ("ONE", "TWO", "THREE", "FOUR")] == ["node", "driver", "group", "worker"]
    assert left["env"]["CPATH"] == "/worker:/group:/node:/both"
    assert (left["prefix"], right["prefix"]) == (answer["prefix"], sys.prefix)
    assert (left["env"].get("ONLY_LEFT"), left["env"].get("ONLY_RIGHT")) == ("1", None)
    assert (right["env"].get("ONLY_LEFT"), right["env"].get("ONLY_RIGHT")) == (None, "1")
    assert [row["group"] for row in (left, right, by_node)] == ["left", "right", "node"]
    assert [row["device"] for row in (left, right)] == [1, 7]


def test_nodes_are_numbered_by_the_rank_they_were_started_with(found: dict[str, Any]) -> None:
    assert found["nodes"] == ["other", "head"]
    assert [(row["node"], row["node_rank"], row["device"]) for row in found["left"]] == [("other", 0, 1)]
    assert [(row["node"], row["node_rank"], row["device"]) for row in found["right"]] == [("head", 1, 7)]


def test_the_higher_level_wins_at_each_step(found: dict[str, Any]) -> None:
    for row in found["left"]:
        env = row["env"]
        assert [env[name] for name in ("ONE", "TWO", "THREE", "FOUR")] == ["node", "driver", "group", "worker"]
        assert env["CPATH"] == "/worker:/group:/driver:/both:/node"


def test_every_worker_sees_the_variables_and_the_interpreter_of_its_group(found: dict[str, Any]) -> None:
    (right,) = found["right"]
    assert [row["env"].get("ONLY_LEFT") for row in found["left"]] == ["1"]
    assert "ONLY_RIGHT" not in found["left"][0]["env"] and "ONLY_LEFT" not in right["env"]
    assert right["env"]["ONLY_RIGHT"] == "1" and right["env"]["THREE"] == "driver"
    assert {row["prefix"] for row in found["left"]} == {found["prefix"]}
    assert right["prefix"] == sys.prefix
    assert [row["group"] for row in found["left"] + found["right"]] == ["left", "right"]


def test_a_worker_may_be_placed_by_node(found: dict[str, Any]) -> None:
    (row,) = found["nodes"]
    assert (row["node"], row["node_rank"], row["group"]) == ("head", 1, "node")


def test_no_worker_gets_the_launchers_rank(found: dict[str, Any]) -> None:
    for row in (*found["left"], *found["right"], *found["nodes"]):
        assert not {"RANK", "WORLD_SIZE"} & row["env"].keys()
