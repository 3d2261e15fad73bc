"""The commands of docs/sft.md, run as they stand there: by Ray and by torchrun, to the same numbers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sft.md").read_text()
DEADLINE_S = 200
SHORT = ("steps=3", "save_freq=2", "trainer.log_freq=1", "accelerator.gradient_accumulation.steps=2")


def command(beginning: str) -> list[str]:
    """The one line of the page that begins so, as arguments of this interpreter."""
    lines = [line for line in PAGE.splitlines() if line.startswith(beginning)]
    assert len(lines) == 1, lines
    words = lines[0].split()
    return ["-m", "torch.distributed.run", *words[1:]] if words[0] == "torchrun" else ["-m", *words]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_both_launchers_train_alike(tmp_path: Path) -> None:
    by_ray, by_torchrun = tmp_path / "ray", tmp_path / "torchrun"
    done = run([*command("plugrl sft examples"), *SHORT, f"output_dir={by_ray}"])
    assert done.returncode == 0, done.stdout + done.stderr
    banner = "effective batch size: 32 per worker x 2 workers x 2 accumulation = 128 (dp_replicate=1, dp_shard=2)"
    assert done.stdout.count(banner) == 1
    launched = run([*command("torchrun --nproc"), *SHORT, f"output_dir={by_torchrun}"])
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert launched.stdout.count(banner) == 1, "rank 0 alone prints"
    assert re.search(r"rank 1 of 2: \S+", launched.stdout)
    assert [row["sft/loss"] for row in rows(by_torchrun)] == [row["sft/loss"] for row in rows(by_ray)]
    assert "val/loss" in rows(by_torchrun)[-1] and sorted(os.listdir(by_torchrun / "checkpoints")) == [
        "000002", "000003", "last",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_that_goes_on_does(tmp_path: Path) -> None:
    start, resumed = command("torchrun --nproc"), command("plugrl sft --resume=true")
    folder = tmp_path / "run"
    assert run([*start, *SHORT, f"output_dir={folder}"]).returncode == 0
    words = [word for word in resumed[3:] if not word.startswith(("--config_path", "steps"))]
    last = f"--config_path={folder}/checkpoints/last"
    again = run([*start[: start.index("sft") + 1], *words, last, "steps=4"])
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resumed from step 3" in again.stdout and [row["step"] for row in rows(folder)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_with_its_message(tmp_path: Path) -> None:
    folder = Path(__file__).parent
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {model_type: bc_mlp, precision: fp32}\n"
        "data: {source: numbers, source_options: {fail_rank: 1, fail_at: 3}}\n"
        f"sft: {{batch_size: 2, total_steps: 1000}}\ntrainer: {{default_local_dir: {tmp_path}/out}}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "RLINF_EXT_MODULE": "bc_policy", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command("torchrun --nproc")[:-1], str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode != 0
    assert "failed: OSError: the disk of this rank is gone" in done.stderr
