"""Whenever a process is killed, what it leaves is a whole checkpoint or none; an altered byte of any file is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import crash_runner
import pytest
import resharding

from plugrl.checkpoints import CheckpointStore, Manifest
from plugrl.errors import CheckpointError
from plugrl.testing.ranks import RankPool


def kill(folder: Path, kind: str, kills: int, seed: int = 0) -> list[dict[str, Any]]:
    """Kill training ``kills`` times in the middle of a save; what could be resumed each time."""
    done = subprocess.run(
        [sys.executable, crash_runner.__file__, str(folder), kind, str(kills), str(seed)],
        capture_output=True, text=True, timeout=60 + 20 * kills, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(results: list[dict[str, Any]], kills: int) -> None:
    """Every time a complete checkpoint was there, with the weights of its step, and never an older one than before."""
    assert len(results) == kills and all(result["equal"] for result in results)
    steps = [result["step"] for result in results]
    assert steps == sorted(steps) and steps[-1] > 0


@pytest.mark.parametrize("kind", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_a_run_goes_on_after_a_kill_in_a_save(tmp_path: Path, kind: str) -> None:
    kills = {"sync": 3, "async": 2}[kind]
    check(kill(tmp_path, kind, kills), kills)


@pytest.mark.slow
@pytest.mark.parametrize("kind", crash_runner.KINDS)
def test_a_run_goes_on_after_each_of_twenty_kills(tmp_path: Path, kind: str) -> None:
    results = kill(tmp_path, kind, 20, seed=7)
    check(results, 20)
    assert any(name.startswith(".writing-") for result in results for name in result["left"]), "no kill met a save"


def test_an_altered_byte_in_any_file_is_found_and_named(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(resharding.write, "fsdp2", {}, {"format": "safetensors_dcp"}, str(tmp_path), world=2)
    store = CheckpointStore(tmp_path)
    step = store.path_of(2)
    names = [*Manifest.load(step).files, "manifest.json"]
    assert len(names) == 12
    for name in names:
        path = step / name
        content = path.read_bytes()
        for position in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
            with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
                store.resolve("last")
        path.write_bytes(content)
    assert store.resolve("last") == step
