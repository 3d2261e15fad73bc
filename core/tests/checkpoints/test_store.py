"""Checkpoints are whole or not there (rules CK-2 to CK-6). Nothing here needs torch."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugrl.checkpoints import CheckpointStore, step_name, verify
from plugrl.checkpoints.manifest import sha256_of
from plugrl.errors import CheckpointError

KILLED_BEFORE_RENAME = """
import os, sys
import plugrl.checkpoints.store as store_module

calls = []
real = os.rename

def rename(source, target):
    calls.append(target)
    if len(calls) == int(sys.argv[2]):
        os._exit(9)
    real(source, target)

store_module.os.rename = rename
with store_module.CheckpointStore(sys.argv[1]).write(int(sys.argv[3])) as folder:
    (folder / "weights").write_bytes(b"new")
"""


def save(store: CheckpointStore, step: int, content: bytes = b"weights") -> Path:
    """Write a small checkpoint and return where it lies."""
    with store.write(step) as folder:
        (folder / "pretrained_model").mkdir()
        (folder / "pretrained_model" / "model.safetensors").write_bytes(content)
        (folder / "training_state").mkdir()
        (folder / "training_state" / "training_step.json").write_text(json.dumps({"step": step}))
    store.finish()
    return store.path_of(step)


def names(store: CheckpointStore) -> list[str]:
    """Return what lies in the store's folder."""
    return sorted(path.name for path in store.root.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A store that keeps all."""
    return CheckpointStore(tmp_path / "checkpoints")


def test_a_full_disk_is_one_message_and_leaves_the_earlier_ones(store: CheckpointStore) -> None:
    save(store, 60)
    with pytest.raises(CheckpointError, match=r"step 61 could not be written to .*checkpoints: No space left"):
        with store.write(61) as folder:
            (folder / "half").write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(store) == ["000060", "last"] and store.resolve("auto") == store.root / "000060"


def test_layout_manifest_and_last(store: CheckpointStore) -> None:
    path = save(store, 60)
    assert path == store.root / "000060" and names(store) == ["000060", "last"]
    assert os.readlink(store.root / "last") == "000060"
    manifest = verify(path)
    assert manifest.step == 60
    assert sorted(manifest.files) == ["pretrained_model/model.safetensors", "training_state/training_step.json"]
    assert manifest.files["pretrained_model/model.safetensors"].size == 7
    assert store.resolve("last") == store.resolve("auto") == store.resolve("60") == path
    assert store.resolve(path) == path and store.resolve(str(store.root)) == path


def test_steps_sort_beyond_six_digits(store: CheckpointStore) -> None:
    assert step_name(1234567) == "1234567"
    assert step_name(5, 1000) == "000005" and step_name(456789, 1_000_000) == "0456789"
    for step in (999999, 1000000):
        save(store, step)
    assert store.steps() == [999999, 1000000] and store.resolve("auto") == store.path_of(1000000)


def test_a_longer_run_finds_the_steps_of_a_shorter_one(store: CheckpointStore) -> None:
    save(store, 5)
    longer = CheckpointStore(store.root, total_steps=1_000_000)
    save(longer, 6)
    save(longer, 5, b"again")
    assert names(store) == ["0000006", "000005", "last"] and longer.steps() == [5, 6]
    assert longer.resolve("5") == longer.resolve("last") == store.root / "000005"


def test_a_block_that_raises_leaves_nothing(store: CheckpointStore) -> None:
    save(store, 1)
    with pytest.raises(RuntimeError, match="boom"), store.write(2) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError("boom")
    assert names(store) == ["000001", "last"] and store.resolve("last") == store.path_of(1)


def test_empty_store(store: CheckpointStore) -> None:
    assert store.resolve("auto") is None and store.resolve("disable") is None and store.steps() == []
    with pytest.raises(CheckpointError, match=r"trainer\.resume.*\(none\).*auto, disable, last"):
        store.resolve("last")


@pytest.mark.parametrize("what", ["autoo", "resume_path", "/nowhere/000060", "7"])
def test_what_is_not_there_lists_steps_and_modes(store: CheckpointStore, what: str) -> None:
    save(store, 60)
    with pytest.raises(CheckpointError, match=r"trainer\.resume.*60.*auto, disable, last"):
        store.resolve(what)


def truncate(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:3])
    return "3 bytes instead of 7"


def alter_one_byte(path: Path) -> str:
    path.write_bytes(b"weightz")
    return "another hash"


def remove(path: Path) -> str:
    path.unlink()
    return "is missing"


@pytest.mark.parametrize("harm", [truncate, alter_one_byte, remove])
def test_harmed_file_is_named_and_auto_takes_the_one_before(
    store: CheckpointStore, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1)
    path = save(store, 2)
    text = harm(path / "pretrained_model" / "model.safetensors")  # type: ignore[operator]
    for what in ("last", str(path), "2"):
        with pytest.raises(CheckpointError, match=rf"pretrained_model/model\.safetensors.*{text}"):
            store.resolve(what)
    with caplog.at_level(logging.WARNING):
        assert store.resolve("auto") == store.path_of(1)
    assert "model.safetensors" in caplog.text


def test_a_file_that_cannot_be_read_is_a_harmed_one(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1)
    path = save(store, 2)

    def read(file: Path) -> str:
        if path in file.parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sha256_of(file)

    monkeypatch.setattr("plugrl.checkpoints.manifest.sha256_of", read)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: Input/output error"):
        verify(path)
    with caplog.at_level(logging.WARNING):
        assert store.resolve("auto") == store.path_of(1)


def test_a_named_folder_without_a_whole_checkpoint_is_refused(store: CheckpointStore) -> None:
    remove(save(store, 1) / "pretrained_model" / "model.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint in .* is whole"):
        store.resolve(str(store.root))


@pytest.mark.parametrize("content", [None, "{", '{"step": 2}', '{"format_version": 99, "step": 2, "files": {}}'])
def test_without_a_readable_manifest_a_step_is_incomplete(
    store: CheckpointStore, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1)
    manifest = save(store, 2) / "manifest.json"
    manifest.unlink() if content is None else manifest.write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest"):
        store.resolve("last")
    with caplog.at_level(logging.WARNING):
        assert store.resolve("auto") == store.path_of(1)
    assert "000002" in caplog.text and store.steps() == [1]


def test_manifest_may_not_point_outside(store: CheckpointStore) -> None:
    path = save(store, 1)
    raw = json.loads((path / "manifest.json").read_text())
    raw["files"]["../secret"] = {"size": 1, "sha256": ""}
    (path / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="outside"):
        verify(path)


def kill_at_rename(store: CheckpointStore, call: int, step: int) -> None:
    """Write a step in another process that dies at its ``call``-th rename."""
    arguments = [sys.executable, "-c", KILLED_BEFORE_RENAME, str(store.root), str(call), str(step)]
    assert subprocess.run(arguments, timeout=60).returncode == 9


def test_kill_between_write_and_rename(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    save(store, 1)
    kill_at_rename(store, 1, step=2)
    assert len([name for name in names(store) if name.startswith(".")]) == 1
    assert store.steps() == [1] and store.resolve("auto") == store.resolve("last") == store.path_of(1)
    with caplog.at_level(logging.WARNING):
        save(store, 3)
    assert names(store) == ["000001", "000003", "last"] and "interrupted save" in caplog.text


def test_kill_while_a_step_is_replaced_keeps_the_old_one(store: CheckpointStore) -> None:
    save(store, 2, b"old")
    kill_at_rename(store, 2, step=2)
    assert "000002" not in names(store)
    assert store.resolve("auto") == store.path_of(2)
    assert (store.path_of(2) / "pretrained_model" / "model.safetensors").read_bytes() == b"old"


def test_a_step_can_be_written_again(store: CheckpointStore) -> None:
    save(store, 2, b"old")
    path = save(store, 2, b"new")
    assert verify(path).sequence == 2 and names(store) == ["000002", "last"]
    assert (path / "pretrained_model" / "model.safetensors").read_bytes() == b"new"


def test_newest_is_the_last_written_also_after_going_back(store: CheckpointStore) -> None:
    for step in (20, 40, 60):
        save(store, step)
    save(store, 30)
    assert store.resolve("auto") == store.resolve("last") == store.path_of(30)


def test_retention_counts_what_is_on_disk(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(CheckpointStore(tmp_path), step)
    (tmp_path / "000009").mkdir()
    after_restart = CheckpointStore(tmp_path, max_to_keep=2)
    save(after_restart, 4)
    assert after_restart.steps() == [3, 4]
    save(after_restart, 2)
    assert after_restart.steps() == [2, 4] and after_restart.resolve("last") == after_restart.path_of(2)
    assert names(after_restart) == ["000002", "000004", "000009", "last"]


def test_keeping_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, max_to_keep=1)
    for step in (1, 2, 2):
        save(store, step)
    assert store.steps() == [2] and verify(store.path_of(2))
    with pytest.raises(CheckpointError, match="max_ckpt_to_keep"):
        CheckpointStore(tmp_path, max_to_keep=0)


def test_relative_root_is_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore("runs/checkpoints")
    monkeypatch.chdir("/")
    assert save(store, 1) == tmp_path / "runs" / "checkpoints" / "000001"
    with pytest.raises(CheckpointError, match="no checkpoint"):
        verify("runs/checkpoints/000001")
