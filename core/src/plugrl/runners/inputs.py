"""What is loaded and checked before anything is started, for each command: every mistake shows before a worker runs.

`plugrl config check` calls the same functions as the commands, so that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plugrl.checkpoints import CheckpointStore
from plugrl.config.schema import RunConfig
from plugrl.data.registry import load_source
from plugrl.data.run_plan import RunPlan
from plugrl.data.samples import SampleSplits
from plugrl.errors import ConfigError, RunExists
from plugrl.models import get_processor
from plugrl.models.processor import TextProcessor
from plugrl.platforms import get_platform
from plugrl.platforms.visible import visible_count
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import Component, placement, rl_components
from plugrl.runners.flow_table import check_flow
from plugrl.runners.launcher_guard import check_launcher_variables
from plugrl.runners.preflight import check_parts, check_placed_engines, preflight
from plugrl.runners.prompts import PromptData
from plugrl.runners.rl import rl_plan
from plugrl.runners.state import check_state
from plugrl.runtime.placement import Node
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
    if config.is_embodied:
        raise ConfigError("env: this run is one in environments, which has no prompts")
    inputs = _check_inputs(config, "train", rl_components(config))
    data = PromptData(config, inputs.processor)
    if config.cluster.ray_address is None:
        planned(config, data, visible_count(get_platform(config.platform)))
    if inputs.resume_from is not None:
        check_state(inputs.resume_from, sampler=data.sampler, uses_critic=config.uses_critic)
    elif config.sft.before_rl:
        PromptData(config, inputs.processor, supervised=True)
    return inputs, data


@dataclass
class SftInputs:
    """What supervised training has in hand when it starts; ``prompts`` None where the data are no text."""

    run_dir: RunDirectory
    store: CheckpointStore
    resume_from: Path | None = None
    processor: TextProcessor | None = None
    prompts: PromptData | None = None
    reward: RewardManager | None = None

    @property
    def measures_accuracy(self) -> bool:
        """Whether answers to held-out prompts can be judged."""
        return self.reward is not None and self.prompts is not None and bool(self.prompts.val.records)


def check_sft_inputs(config: RunConfig, ranks: int | None = None) -> SftInputs:
    """Check and load what ``sft`` needs. Raises UserError as :func:`check_rl_inputs`.

    ``ranks`` is the number of processes that a launcher started; None when Ray will start them as they are placed.
    """
    run_dir, store, resume_from = _check_run(config, "sft", ("actor",), ranks)
    inputs = SftInputs(run_dir, store, resume_from)
    if isinstance(load_source(config.data), SampleSplits):
        if config.sft.stop_at_accuracy is not None:
            raise ConfigError(f"sft.stop_at_accuracy: {config.data.source} has no prompts to measure an accuracy on.")
        return inputs
    inputs.processor = get_processor(config.model)
    inputs.prompts = PromptData(config, inputs.processor, supervised=True)
    inputs.reward = _reward(config)
    if ranks is not None and inputs.measures_accuracy:
        if config.sft.stop_at_accuracy is not None:
            raise ConfigError("sft.stop_at_accuracy: accuracy is measured only where Ray starts the workers.")
        inputs.reward = None
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


def planned(config: RunConfig, data: PromptData, nodes: int | Sequence[Node]) -> RunPlan:
    """Return the arithmetic of the run on these nodes, or on so many devices of one.

    Raises ConfigError naming the keys that do not fit.
    """
    devices = placement(config, rl_components(config), nodes)
    check_flow(config, devices)
    return rl_plan(config, len(data.train), len(devices["actor"]))


def _check_inputs(config: RunConfig, task: Literal["train", "sft"], needed: tuple[Component, ...]) -> Inputs:
    run_dir, store, resume_from = _check_run(config, task, needed)
    return Inputs(get_processor(config.model), _reward(config), run_dir, store, resume_from)


def _check_run(
    config: RunConfig, task: Literal["train", "sft"], needed: tuple[Component, ...], ranks: int | None = None
) -> tuple[RunDirectory, CheckpointStore, Path | None]:
    check_launcher_variables()
    preflight(config, task, needed, ranks)
    check_parts(config, needed)
    if ranks is None:
        check_placed_engines(config, task, needed)
    run_dir = RunDirectory(config.trainer.default_local_dir)
    trainer = config.trainer
    total = config.sft.total_steps if task == "sft" else trainer.total_training_steps or 0
    store = CheckpointStore(run_dir.checkpoints, trainer.max_ckpt_to_keep, trainer.keep_every, total_steps=total)
    if config.trainer.resume == "new":
        refuse_earlier_run(run_dir.path)
        return run_dir, store, None
    return run_dir, store, store.resolve(config.trainer.resume)


def _reward(config: RunConfig) -> RewardManager | None:
    named = config.reward.name or config.reward.function
    return RewardManager(config.reward) if named else None


def refuse_earlier_run(folder: Path) -> None:
    """Raise RunExists when a run lies in ``folder``."""
    if any(folder.glob("checkpoints/[0-9]*")) or (folder / "metrics.jsonl").exists():
        raise RunExists(
            f"trainer.default_local_dir: there is a run in {folder} already. Go on with it (trainer.resume=auto), or "
            "give another folder (output_dir)."
        )
