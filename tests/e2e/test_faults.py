"""A killed worker: a typed error at once, nothing left running, and a resume that goes on as if nothing had been."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

COMPARED = (
    "critic/rewards/mean", "critic/advantages/max", "actor/pg_loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy",
    "response_length/mean", "training/epoch", "training/rollout_probs_diff_mean",
)  # fmt: skip


def children_of(pid: int) -> dict[int, str]:
    """Every living descendant of a process with its command line."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found: dict[int, str] = {}
    grown = True
    while grown:
        fresh = {p for p, parent in parents.items() if (parent == pid or parent in found) and p not in found}
        grown = bool(fresh)
        found |= {process: commands[process] for process in fresh}
    return found


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_and_resume_goes_on_exactly(finished: Path, cli: Any) -> None:
    path = cli.write("killed", trainer={"total_training_steps": 4, "save_freq": 2, "test_freq": 2})
    process = cli.start("train", str(path))
    deadline = time.monotonic() + 180
    checkpoint = cli.folder / "killed" / "checkpoints" / "000002" / "manifest.json"
    while not checkpoint.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    family = children_of(process.pid)
    victims = sorted(pid for pid, command in family.items() if command.startswith("ray::Host"))
    assert victims, family
    os.kill(victims[0], signal.SIGKILL)
    killed_at = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - killed_at < 20  # 10 s to the error, the rest for the driver to put everything away
    assert process.returncode == 1
    assert re.search(rf"worker group '\w+' rank \d.*pid {victims[0]}", err), err
    assert "Traceback" not in err
    time.sleep(0.5)
    left = [
        pid
        for pid in family
        if Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    ]
    assert not left, {pid: family[pid] for pid in left}

    resumed = cli.run("train", str(path), "trainer.resume=auto")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    expected, found = cli.metrics("finished"), cli.metrics("killed")
    assert sorted(found) == [0, 1, 2, 3, 4]
    for step in (3, 4):
        for key in COMPARED:
            assert found[step][key] == expected[step][key], (step, key)


@pytest.mark.parametrize("part", [pytest.param("missing", marks=pytest.mark.slow), "altered"])
def test_a_damaged_checkpoint_is_refused_before_anything_starts(
    finished: Path, cli: Any, part: str, tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "000004"
    shutil.copytree(finished / "checkpoints" / "000004", copy)
    weights = copy / "pretrained_model" / "model.safetensors"
    if part == "missing":
        weights.unlink()
    else:
        with weights.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x5a" if weights.read_bytes()[-1:] != b"\x5a" else b"\xa5")
    done = cli.run("train", str(finished.parent / "finished.yaml"), f"trainer.resume={copy}")
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr and "Traceback" not in done.stderr
    assert "step" not in done.stdout
