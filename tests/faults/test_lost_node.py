"""The loss of a node, with one component on it, at each phase of a step: named in time, and the rest goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
from table import record
from trial import COMPONENTS, LIMIT_S, PHASES, Cell, Outcome

from plugrl.testing.ray_nodes import RayNode, ray_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DRIVER = Path(__file__).with_name("lost_node_driver.py")


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, Outcome]]:
    """What was measured, printed in the end."""
    found: dict[Cell, Outcome] = {}
    yield found
    record(found)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_lost_node_is_named_in_time_and_the_rest_goes_on(
    tmp_path: Path, outcomes: dict[Cell, Outcome], component: str
) -> None:
    nodes = [RayNode(name="head"), *(RayNode(name=f"other-{phase}") for phase in PHASES)]
    with ray_nodes(nodes) as address:
        done = subprocess.run(
            [sys.executable, str(DRIVER), address, str(tmp_path), component],
            capture_output=True, text=True, timeout=700, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, *rest = map(json.loads, done.stdout.splitlines())
    assert first["taken"] == [[1, "two"]] and not first["left"], first
    assert first["error"] == "WorkerFrozen" and first["seconds"] < LIMIT_S, first
    assert "worker group 'far' rank 1" in first["text"] and "stopped" in first["text"], first
    assert [line["phase"] for line in rest] == list(PHASES)
    for line in rest:
        cell = Cell(component, "node", line.pop("phase"))
        outcome = outcomes[cell] = Outcome(**line)
        assert outcome.error == "WorkerDied" and f"worker group 'f-{component}'" in outcome.text, (cell, outcome)
        assert outcome.seconds < LIMIT_S, (cell, outcome)
