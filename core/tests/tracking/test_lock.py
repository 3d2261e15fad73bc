"""The lock on a run's folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plugrl.errors import UserError
from plugrl.tracking.lock import FolderLock

HOLD = """
import sys
from pathlib import Path
from plugrl.tracking.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_in_the_folder_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=r"another run is at work in .*run"), FolderLock(folder):
        pass
    first.kill()
    first.communicate(timeout=30)
    with FolderLock(folder):
        assert folder.is_dir()
    assert not folder.exists()


def test_the_lock_follows_the_path_when_the_folder_is_moved_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with FolderLock(folder) as lock:
        lock.renew()
        folder.rename(tmp_path / "earlier")
        lock.renew()
        (folder / "metrics.jsonl").touch()
        with pytest.raises(UserError), FolderLock(folder):
            pass
        with FolderLock(tmp_path / "earlier"):
            pass
    assert folder.exists()


def test_a_folder_that_cannot_be_made_is_named_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^trainer\.default_local_dir: .*file/run cannot be used"):
        with FolderLock(tmp_path / "file" / "run"):
            pass
