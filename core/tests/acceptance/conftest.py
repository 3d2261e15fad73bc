"""Curves as training gives them, and folders of runs that hold them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugrl.acceptance.record import REWARD

CONFIGURATION: dict[str, Any] = {
    "platform": "cpu",
    "data": {"source": "arithmetic", "train_files": ["/somewhere/train.parquet"]},
    "actor": {"strategy": "fsdp2", "optim": {"lr": 4e-4, "betas": [0.9, 0.95]}},
    "trainer": {"total_training_steps": 100, "seed": 42, "logger": ["jsonl"]},
}


def learning(steps: int = 100, *, seed: int = 0, noise: float = 0.03) -> list[float]:
    """A reward that rises from 0.45 towards 0.8, with the noise of drawn prompts."""
    draw = random.Random(seed)
    return [0.45 + 0.35 * (1 - math.exp(-step / 50)) + draw.gauss(0, noise) for step in range(steps)]


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write the folder of a run with these rewards and return it; None leaves a null, as the logger does."""

    def write(rewards: Sequence[float | None], name: str = "run", **changed: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        values = json.loads(json.dumps(CONFIGURATION))
        for section, keys in changed.items():
            values[section] = {**values[section], **keys} if isinstance(keys, dict) else keys
        values["trainer"].setdefault("total_training_steps", len(rewards))
        (folder / "config.yaml").write_text(yaml.safe_dump(values))
        (folder / "versions.json").write_text(json.dumps({"python": "3.11", "packages": {"torch": "2.13.0"}}))
        rows = [{"step": 1, "phase": "sft", "sft/loss": 2.5}, {"step": 0, "phase": "rl", "val-core/a/acc/mean@1": 0.4}]
        rows += [
            {"step": step, "phase": "rl", REWARD: value, "actor/grad_norm": 1.0, "actor/skipped_steps": 0.0}
            for step, value in enumerate(rewards, 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return write
