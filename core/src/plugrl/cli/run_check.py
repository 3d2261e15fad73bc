"""What a run finds out before it starts anything, without the run: `plugrl config check` and the run must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugrl.config.checks import Task
    from plugrl.config.schema import RunConfig


def check_run(config: RunConfig, task: Task) -> None:
    """Check options, loggers, devices, checkpoint, tokenizer, reward and data as the command of the task does.

    Raises:
        UserError: what the command would say before it starts a worker.
    """
    from plugrl.platforms import get_platform
    from plugrl.runners.components import rl_components
    from plugrl.runners.main import check_eval_inputs, check_inputs, planned
    from plugrl.runners.prompts import PromptData

    if task == "eval":
        check_eval_inputs(config)
        return
    inputs = check_inputs(config, task, rl_components(config) if task == "train" else ("actor",))
    if task == "sft" or (config.sft.before_rl and inputs.resume_from is None):
        PromptData(config, inputs.processor, supervised=True)
    if task == "train":
        data = PromptData(config, inputs.processor)
        if config.cluster.ray_address is None:
            planned(config, data, get_platform(config.platform).device_count())
