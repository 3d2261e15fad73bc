"""Faults of each component at each phase of a step: a typed error in time, nothing left behind, and a next step.

`pytest -m slow -s tests/faults` prints what every cell ended with and after how many seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
from table import record
from trial import COMPONENTS, CONFIG, LIMIT_S, METHOD_FAULTS, PHASES, PROCESS_FAULTS, Cell, Outcome, Trial

from plugrl import errors
from plugrl.config import load_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CELLS = [
    cell
    for component in COMPONENTS
    for fault in (*METHOD_FAULTS, *PROCESS_FAULTS)
    for phase in PHASES
    if (cell := Cell(component, fault, phase)).makes_sense
]
EXPECTED = {"kill": "WorkerDied", "freeze": "WorkerFrozen"}


@pytest.fixture(scope="module")
def trial(ray_session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The components, launched once and again after each fault that ends them."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "run.yaml").write_text(CONFIG)
    trial = Trial(ray_session, load_config(folder / "run.yaml"), folder)
    yield trial
    assert trial.close() == []


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, Outcome]]:
    """What was measured, printed in the end."""
    found: dict[Cell, Outcome] = {}
    yield found
    record(found)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.component}-{cell.fault}-{cell.phase}")
def test_a_fault_is_a_typed_error_in_time_and_the_next_step_runs(
    trial: Trial, outcomes: dict[Cell, Outcome], cell: Cell
) -> None:
    outcome = outcomes[cell] = trial.run(cell)
    assert outcome.seconds < LIMIT_S, outcome
    assert outcome.left == [], outcome
    if not outcome.error:
        assert cell.fault == "full", "it went unnoticed"
        return
    assert issubclass(getattr(errors, outcome.error, Exception), errors.PlugRLError), outcome
    assert f"f-{cell.component}" in outcome.text, outcome
    unwritten = (cell.fault, cell.phase) == ("full", "save")
    expected = "CheckpointError" if unwritten else EXPECTED.get(cell.fault, "WorkerError")
    assert outcome.error == expected, outcome


def test_the_driver_holds_no_more_after_many_faults_than_after_a_few(trial: Trial) -> None:
    trial.run(Cell("rollout", "kill", "sync"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        trial.run(Cell("rollout", "kill", "sync"))
        trial.run(Cell("actor", "exception", "sync"))
        trial.run(Cell("actor", "orphaned", "update"))
    assert len(os.listdir("/proc/self/fd")) <= before + 3
