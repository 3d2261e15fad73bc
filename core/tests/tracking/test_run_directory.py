"""The run directory: written without secrets, cut back on resume, kept on a new start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugrl.config import RunConfig
from plugrl.config.yaml_source import read_document
from plugrl.errors import UserError
from plugrl.tracking import RunDirectory
from plugrl.tracking.files import read_lines, truncate_after, write_atomic


class Ledger:
    """Something with a to_dict."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"plugins": [{"name": "a", "state": "active"}], "hub_token": "hidden"}


def rows(*steps: tuple[str, int]) -> str:
    return "".join(json.dumps({"step": step, "phase": phase, "x": step}) + "\n" for phase, step in steps)


def steps(path: Path) -> list[tuple[str, int]]:
    return [(row["phase"], row["step"]) for row in read_lines(path)]


def test_start_writes_configuration_ledger_and_versions(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    config = RunConfig(reward={"name": "x", "reward_kwargs": {"api_key": "hidden"}})  # type: ignore[arg-type]
    run.start(config, Ledger())
    document, _ = read_document(run.config)
    assert document["trainer"]["total_epochs"] == 30
    assert json.loads(run.plugins.read_text())["plugins"][0]["state"] == "active"
    versions = json.loads(run.versions.read_text())
    assert versions["packages"]["pydantic"] and versions["plugrl"]["plugrl"]
    assert not any("hidden" in path.read_text() for path in run.path.iterdir() if path.is_file())


def test_resume_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for path in (run.metrics, run.samples):
        path.write_text(rows(("sft", 1), ("sft", 9), ("rl", 0), ("rl", 1), ("rl", 2), ("rl", 3)) + '{"step": 4, "ph')
    run.start(RunConfig(), resume_step=2)
    expected = [("sft", 1), ("sft", 9), ("rl", 0), ("rl", 1), ("rl", 2)]
    assert steps(run.metrics) == expected and steps(run.samples) == expected
    assert run.metrics.read_text().endswith("\n")


def test_resuming_the_first_phase_drops_the_second(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(rows(("sft", 1), ("sft", 2), ("sft", 3), ("rl", 1)))
    assert truncate_after(path, 2, "sft") == 2
    assert steps(path) == [("sft", 1), ("sft", 2)]


def test_a_new_run_keeps_the_records_of_the_old_one_apart(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.metrics.write_text(rows(("rl", 1)))
    run.start(RunConfig())
    assert not run.metrics.exists()
    assert steps(tmp_path / "metrics.previous.jsonl") == [("rl", 1)]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(UserError, match=r"a\.txt cannot be written: disk full"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
