"""What is loaded and checked before anything is started, for each command: every mistake shows before a worker runs.

`plugrl config check` calls the same functions as the commands, so that they agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plugrl.checkpoints import CheckpointStore
from plugrl.config.schema import RunConfig
from plugrl.data.run_plan import RunPlan
from plugrl.errors import ConfigError
from plugrl.models import get_processor
from plugrl.models.processor import TextProcessor
from plugrl.platforms import get_platform
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import Component, placement, rl_components
from plugrl.runners.launcher_guard import check_launcher_variables
from plugrl.runners.preflight import check_parts, preflight
from plugrl.runners.prompts import PromptData
from plugrl.runners.rl import rl_plan
from plugrl.runners.state import check_state
from plugrl.tracking import RunDirectory


@dataclass
class Inputs:
    """What every training command has in hand when it starts."""

    processor: TextProcessor
    reward: RewardManager | None
    run_dir: RunDirectory
    store: CheckpointStore
    resume_from: Path | None = None


def check_rl_inputs(config: RunConfig) -> tuple[Inputs, PromptData]:
    """Check and load what ``train`` needs; the data stand where a checkpoint that is resumed left them.

    Raises:
        UserError: whatever is wrong with configuration, data, model, reward, devices or checkpoint.
    """
    inputs = _check_inputs(config, "train", rl_components(config))
    data = PromptData(config, inputs.processor)
    if config.cluster.ray_address is None:
        planned(config, data, get_platform(config.platform).device_count())
    if inputs.resume_from is not None:
        check_state(inputs.resume_from, sampler=data.sampler, uses_critic=config.uses_critic)
    elif config.sft.before_rl:
        PromptData(config, inputs.processor, supervised=True)
    return inputs, data


def check_sft_inputs(config: RunConfig) -> Inputs:
    """Check and load what ``sft`` needs. Raises UserError as :func:`check_rl_inputs`."""
    inputs = _check_inputs(config, "sft", ("actor",))
    PromptData(config, inputs.processor, supervised=True)
    return inputs


def check_eval_inputs(config: RunConfig) -> tuple[TextProcessor, RewardManager, PromptData]:
    """Check and load what ``eval`` needs. Raises UserError as :func:`check_rl_inputs`."""
    preflight(config, "eval", ("rollout",))
    check_parts(config, ("rollout",))
    processor = get_processor(config.model)
    reward = RewardManager(config.reward)
    data = PromptData(config, processor)
    if not data.val.records:
        raise ConfigError(f"data.source: {config.data.source} gives no held-out prompts to measure on.")
    return processor, reward, data


def planned(config: RunConfig, data: PromptData, device_count: int) -> RunPlan:
    """Return the arithmetic of the run on so many devices. Raises ConfigError naming the keys that do not fit."""
    devices = placement(config, rl_components(config), device_count)
    return rl_plan(config, len(data.train), len(devices["actor"]))


def _check_inputs(config: RunConfig, task: Literal["train", "sft"], needed: tuple[Component, ...]) -> Inputs:
    check_launcher_variables()
    preflight(config, task, needed)
    check_parts(config, needed)
    run_dir = RunDirectory(config.trainer.default_local_dir)
    store = CheckpointStore(run_dir.checkpoints, config.trainer.max_ckpt_to_keep)
    resume_from = store.resolve(config.trainer.resume)
    processor = get_processor(config.model)
    named = config.reward.name or config.reward.function
    reward = RewardManager(config.reward) if named else None
    return Inputs(processor, reward, run_dir, store, resume_from)
