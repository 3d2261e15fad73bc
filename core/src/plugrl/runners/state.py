"""What the driver keeps of a run beside the engines: step, data position, KL weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugrl.checkpoints import read_json, write_json
from plugrl.data import PromptSampler
from plugrl.errors import CheckpointError

STATE_FILE = Path("training_state") / "driver_state.json"


def save_state(directory: Path, *, step: int, sampler: PromptSampler, kl_controller: Any) -> None:
    """Write the driver's state into a checkpoint that is being written."""
    path = directory / STATE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"step": step, "sampler": sampler.state_dict(), "kl_coef": kl_controller.value})


def load_state(directory: Path, *, sampler: PromptSampler, kl_controller: Any) -> int:
    """Restore what :func:`save_state` wrote and return its step. Raises CheckpointError when it is not there."""
    path = directory / STATE_FILE
    if not path.exists():
        raise CheckpointError(f"trainer.resume: {directory} is not of a training run: it lacks {STATE_FILE}.")
    state = read_json(path)
    sampler.load_state_dict(state["sampler"])
    kl_controller.value = float(state["kl_coef"])
    return int(state["step"])
