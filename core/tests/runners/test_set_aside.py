"""A new run never writes into the folder of an earlier one, and removes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.runners.main import set_aside  # noqa: E402


def run_folder(root: Path, *files: str) -> Path:
    """A run directory that holds the given files."""
    for name in files:
        path = root / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept")
    return root / "run"


@pytest.mark.parametrize("resume", ["auto", "disable"])
def test_a_run_with_checkpoints_is_moved_whole(tmp_path: Path, resume: str) -> None:
    folder = run_folder(tmp_path, "checkpoints/000002/manifest.json", "metrics.jsonl")
    set_aside(folder, resume)
    assert not folder.exists()
    (moved,) = tmp_path.iterdir()
    assert (moved / "checkpoints" / "000002" / "manifest.json").read_text() == "kept"


def test_a_finished_supervised_phase_is_gone_on_from_only_when_resuming(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "sft/000040/manifest.json", "metrics.jsonl")
    set_aside(folder, "auto")
    assert (folder / "sft" / "000040" / "manifest.json").exists()
    set_aside(folder, "disable")
    assert not folder.exists()


def test_nothing_to_move_is_nothing(tmp_path: Path) -> None:
    set_aside(tmp_path / "new", "disable")
    assert list(tmp_path.iterdir()) == []
