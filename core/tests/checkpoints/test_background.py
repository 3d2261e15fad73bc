"""A step whose writers go on in the background is complete, late or not at all. Nothing here needs torch."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest

from plugrl.checkpoints import CheckpointStore, Manifest, verify
from plugrl.checkpoints.hashed_file import HashedFile
from plugrl.checkpoints.manifest import FileRecord, sha256_of
from plugrl.checkpoints.parts import Part, announce, deliver, pending
from plugrl.errors import CheckpointError


def begin(store: CheckpointStore, step: int, *names: str) -> Path:
    """Write a step whose parts ``names`` are announced; returns the folder that they are written into."""
    with store.write(step) as folder:
        (folder / "config.json").write_text("{}")
        for name in names:
            announce(folder, name)
    return folder


def write_part(folder: Path, name: str, content: bytes = b"weights") -> None:
    """What a writer does: its file, hashed on the way, then the part."""
    with HashedFile(folder / f"{name}.bin") as file:
        file.write(content)
    deliver(folder, name, Part(files={f"{name}.bin": file.close()}))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A store with short deadlines."""
    return CheckpointStore(tmp_path / "checkpoints", timeout_s=5.0)


def test_a_step_appears_when_all_parts_are_there(store: CheckpointStore) -> None:
    folder = begin(store, 1, "rank0", "rank1")
    assert pending(folder) == ["rank0", "rank1"] and store.steps() == []
    write_part(folder, "rank1")
    store.check()
    assert store.steps() == []
    write_part(folder, "rank0")
    store.finish()
    assert store.resolve("auto") == store.path_of(1)
    assert sorted(verify(store.path_of(1)).files) == ["config.json", "rank0.bin", "rank1.bin"]
    assert not list(store.path_of(1).glob(".*"))


def test_a_failed_part_surfaces_once_and_leaves_nothing(store: CheckpointStore) -> None:
    folder = begin(store, 1, "rank0", "rank1")
    deliver(folder, "rank1", Part(error="rank1: OSError: No space left on device"))
    with pytest.raises(CheckpointError, match=r"step 1 failed.*rank1: OSError: No space left"):
        store.finish()
    store.check()
    assert list(store.root.iterdir()) == []


def test_a_writer_on_a_full_disk_makes_nobody_wait(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error takes room that there is none of; the name of its announcement does not."""
    folder = begin(store, 1, "rank0")

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            deliver(folder, "rank0", Part(error="rank0: OSError: No space left on device"))
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="rank0 could not write, not even why"):
        store.finish()
    assert time.monotonic() - began < 2.0 and list(store.root.iterdir()) == []


def test_the_next_step_waits_for_the_one_before(store: CheckpointStore) -> None:
    first = begin(store, 1, "rank0")
    threading.Timer(0.3, write_part, (first, "rank0")).start()
    began = time.monotonic()
    second = begin(store, 2, "rank0")
    assert 0.2 < time.monotonic() - began < 4 and store.steps() == [1]
    write_part(second, "rank0")
    store.finish()
    assert store.steps() == [1, 2] and store.resolve("last") == store.path_of(2)


def test_the_next_step_tells_of_a_failure_before_it(store: CheckpointStore) -> None:
    deliver(begin(store, 1, "rank0"), "rank0", Part(error="boom"))
    with pytest.raises(CheckpointError, match="step 1 failed.*boom"):
        begin(store, 2)
    begin(store, 2)
    assert store.steps() == [2]


def test_a_writer_that_never_ends_meets_the_deadline(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, timeout_s=0.2)
    begin(store, 1, "rank0")
    time.sleep(0.4)
    with pytest.raises(CheckpointError, match=r"rank0 did not finish in 0 s|not complete after"):
        store.finish()


def test_what_was_hashed_on_the_way_is_not_read_again(store: CheckpointStore) -> None:
    with store.write(1) as folder:
        (folder / "a.bin").write_bytes(b"12345")
        deliver(folder, "rank0", Part(files={"a.bin": FileRecord(5, "of the writer")}))
    assert Manifest.load(store.path_of(1)).files["a.bin"].sha256 == "of the writer"
    with store.write(2) as folder:  # grown since: not what the part tells of
        (folder / "a.bin").write_bytes(b"123456")
        deliver(folder, "rank0", Part(files={"a.bin": FileRecord(5, "of the writer")}))
    assert verify(store.path_of(2)).files["a.bin"].sha256 == sha256_of(store.path_of(2) / "a.bin")


@pytest.mark.parametrize("sizes", [(), (0,), (3, 5), (1 << 20, 7, (1 << 20) + 1), (1,) * 2000])
def test_a_hashed_file_is_what_was_written(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    pieces = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    with HashedFile(tmp_path / "new" / "file") as file:
        for piece in pieces:
            data = bytearray(piece)
            assert file.write(data) == len(piece)
            data[:] = b"\xff" * len(data)  # the caller's again
    record = file.close()
    assert (tmp_path / "new" / "file").read_bytes() == b"".join(pieces)
    assert record == FileRecord(sum(sizes), sha256_of(tmp_path / "new" / "file"))


def test_a_hashed_file_that_fails_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), HashedFile(tmp_path / "file") as file:
        file.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_any_altered_byte_of_the_manifest_is_noticed(store: CheckpointStore) -> None:
    begin(store, 1)
    path = store.path_of(1) / "manifest.json"
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x01]) + content[position + 1 :])
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            Manifest.load(store.path_of(1))


def test_a_manifest_of_the_first_version_is_read(store: CheckpointStore) -> None:
    begin(store, 1)
    path = store.path_of(1) / "manifest.json"
    values = json.loads(path.read_text())
    del values["checksum"]
    path.write_text(json.dumps({**values, "format_version": 1}))
    assert verify(store.path_of(1)).step == 1


def test_what_is_resumed_from_and_every_so_many_steps_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, max_to_keep=1, keep_every=10)
    begin(store, 3)
    store.protect(tmp_path / "last")
    for step in (10, 11, 12):
        begin(store, step)
    assert store.steps() == [3, 10, 12]
    with pytest.raises(CheckpointError, match="keep_every"):
        CheckpointStore(tmp_path, keep_every=0)


def test_every_path_in_or_around_a_checkpoint_means_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (1, 2):
        with store.write(step) as folder:
            for name in ("pretrained_model", "training_state"):
                (folder / name).mkdir()
                (folder / name / "train_config.json").write_text("{}")
            (folder / "pretrained_model" / "pytorch_model_fsdp_0").mkdir()
            (folder / "pretrained_model" / "pytorch_model_fsdp_0" / ".metadata").write_text("")
    step = store.path_of(2)
    for path in (
        step / "pretrained_model" / "train_config.json", step / "pretrained_model", step / "training_state", step,
        step / "manifest.json", store.root, store.root / "last", store.root / "last" / "pretrained_model",
        store.root.parent, step / "pretrained_model" / "pytorch_model_fsdp_0",
        step / "pretrained_model" / "pytorch_model_fsdp_0" / ".metadata",
    ):  # fmt: skip
        assert store.resolve(str(path)) == step, path
    assert store.resolve(str(store.path_of(1) / "pretrained_model")) == store.path_of(1)


def test_a_folder_of_runs_that_is_called_like_a_part_is_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "pretrained_model" / "run" / "checkpoints")
    begin(store, 1)
    assert store.resolve(str(store.root.parent)) == store.path_of(1)
