"""What the driver keeps of a run beside the engines: step, data position, KL weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.algorithms import make_kl_controller
from plugrl.algorithms.controllers import KLController
from plugrl.checkpoints import read_json, write_json
from plugrl.data import PromptSampler
from plugrl.errors import CheckpointError

CRITIC = "critic"
"""The folder of the critic in a checkpoint."""

STATE_FILE = Path("training_state") / "driver_state.json"


def save_state(
    directory: Path, *, step: int, sampler_state: Mapping[str, Any], kl_controller: KLController
) -> None:
    """Write the driver's state into a checkpoint that is being written; ``sampler_state`` is of after that step."""
    path = directory / STATE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"step": step, "sampler": dict(sampler_state), "kl_coef": kl_controller.state_dict()["value"]})


def check_state(directory: Path, *, sampler: PromptSampler, uses_critic: bool) -> None:
    """Check before anything starts that a verified checkpoint is of a run like this one; moves ``sampler``.

    Raises CheckpointError when it holds no critic where one is trained, and as :func:`load_state`.
    """
    load_state(directory, sampler=sampler, kl_controller=make_kl_controller())
    if uses_critic and not (directory / CRITIC).is_dir():
        raise CheckpointError(f"trainer.resume: {directory} was saved by a run without a critic, this one trains one.")


def load_state(directory: Path, *, sampler: PromptSampler, kl_controller: KLController) -> int:
    """Restore what :func:`save_state` wrote and return its step. Raises CheckpointError when it is not there."""
    path = directory / STATE_FILE
    if not path.exists():
        raise CheckpointError(f"trainer.resume: {directory} is not of a training run: it lacks {STATE_FILE}.")
    state = read_json(path)
    sampler.load_state_dict(state["sampler"])
    kl_controller.load_state_dict({"value": state["kl_coef"]})
    return int(state["step"])
