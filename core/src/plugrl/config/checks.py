"""What one key says about another: the rules that no single section can check."""

from __future__ import annotations

import os
from collections.abc import Iterator

from plugrl.config.embodied_checks import Task, demos_problems, embodied_problems, without_environments
from plugrl.config.schema import RunConfig
from plugrl.config.schema.run import VALUE_ESTIMATORS
from plugrl.errors import nearest

RESUME_MODES = ("auto", "disable", "last", "new")
"""Words that `trainer.resume` knows."""

_COMPARING = frozenset({"grpo", "grpo_vectorized", "grpo_passk", "gdpo"})
"""Estimators that normalise within the responses to one prompt."""


_NEWEST_WEIGHTS = frozenset({"remax", "optimal_token_baseline", "tir_optimal_token_baseline"})
"""Estimators that ask the policy itself about samples or prompts, besides drawing them."""


def cross_problems(config: RunConfig, task: Task = "train") -> list[str]:
    """Return what is wrong between keys, one line each, starting with the key that is best changed."""
    if task == "demos":
        return list(demos_problems(config))
    if config.is_embodied and task != "sft":
        rules = [_resume(config), embodied_problems(config, task), _clipping(config), _checkpoints(config)]
        return [problem for rule in rules for problem in rule]
    rules = [_resume(config), _data(config), _reward(config, task), without_environments(config)]
    if task == "train":
        rules += [_batches(config), _estimator(config), _divergence(config), _clipping(config), _asynchronous(config)]
    if task == "sft" or config.sft.before_rl:
        rules.append(_supervised(config))
    rules.append(_checkpoints(config))
    return [problem for rule in rules for problem in rule]


def _resume(config: RunConfig) -> Iterator[str]:
    resume = config.trainer.resume
    if resume in RESUME_MODES or os.path.exists(resume):
        return
    found = nearest(resume, RESUME_MODES)
    hint = f"; did you mean {found}?" if found else ""
    yield f"trainer.resume: must be auto, disable or the folder of a checkpoint (or last, new), not {resume!r}{hint}"


def _data(config: RunConfig) -> Iterator[str]:
    data = config.data
    if data.source == "files" and not data.train_files and not data.val_files:
        yield "data.train_files: give at least one file, or choose another data.source"
    if data.source == "arithmetic" and (data.train_files or data.val_files):
        yield f"data.source: {data.source} reads no files, but data.train_files or data.val_files are given; use files"
    if data.template is not None and "{prompt}" not in data.template:
        yield "data.template: must contain {prompt}"


def _reward(config: RunConfig, task: Task) -> Iterator[str]:
    if config.reward.name and config.reward.function:
        yield "reward.function: give reward.name or reward.function, not both"
    needed = task != "sft" or config.sft.stop_at_accuracy is not None
    if needed and not config.reward.name and not config.reward.function:
        yield "reward.name: give the name of a reward (such as gsm8k or exact_match), or your own reward.function"
    overlong, longest = config.reward.overlong_buffer, config.data.max_response_length
    if overlong.enable and overlong.len > longest:
        yield f"reward.overlong_buffer.len: {overlong.len} is more than data.max_response_length, which is {longest}"


def _batches(config: RunConfig) -> Iterator[str]:
    batch = config.data.train_batch_size
    parts = [("actor", config.actor.ppo_mini_batch_size)]
    if config.uses_critic:
        parts.append(("critic", config.critic.ppo_mini_batch_size))
    for owner, mini in parts:
        if mini > batch:
            yield f"{owner}.ppo_mini_batch_size: {mini} is more than data.train_batch_size, which is {batch}"
        elif batch % mini:
            yield f"{owner}.ppo_mini_batch_size: {mini} does not divide data.train_batch_size, which is {batch}"
    if config.actor.use_dynamic_bsz:
        longest = config.data.max_prompt_length + config.data.max_response_length
        budget = config.actor.ppo_max_token_len_per_gpu
        if longest > budget:
            yield (
                f"actor.ppo_max_token_len_per_gpu: {budget} is less than the longest sequence, {longest} "
                "(data.max_prompt_length + data.max_response_length)"
            )


def _estimator(config: RunConfig) -> Iterator[str]:
    name = config.algorithm.adv_estimator
    if name in VALUE_ESTIMATORS and config.critic.enable is False:
        yield f"critic.enable: algorithm.adv_estimator={name} needs a critic; leave critic.enable out"
    if name in _COMPARING and config.rollout.n < 2:
        yield f"rollout.n: algorithm.adv_estimator={name} compares the responses to a prompt and needs 2 or more, not 1"
    if config.algorithm.filter_groups.enable and (config.rollout.n < 2 or config.uses_critic):
        yield "algorithm.filter_groups.enable: compares responses to a prompt; it needs rollout.n >= 2 and no critic"
    if config.trainer.critic_warmup and not config.uses_critic:
        yield "trainer.critic_warmup: there is no critic; set critic.enable=true or use adv_estimator=gae"


def _divergence(config: RunConfig) -> Iterator[str]:
    if config.actor.use_kl_loss and config.algorithm.use_kl_in_reward:
        yield "algorithm.use_kl_in_reward: the divergence is already in the loss (actor.use_kl_loss); choose one"
    if config.algorithm.kl_ctrl.type == "adaptive" and not config.algorithm.use_kl_in_reward:
        yield "algorithm.kl_ctrl.type: adaptive has an effect only with algorithm.use_kl_in_reward=true"


def _clipping(config: RunConfig) -> Iterator[str]:
    low = config.actor.clip_ratio if config.actor.clip_ratio_low is None else config.actor.clip_ratio_low
    if low >= 1:
        yield f"actor.clip_ratio_low: must be less than 1, not {low}"
    if config.actor.loss_scale_factor is not None and config.actor.loss_agg_mode != "seq-mean-token-sum-norm":
        yield "actor.loss_scale_factor: has an effect only with actor.loss_agg_mode=seq-mean-token-sum-norm"
    if config.rollout.temperature == 0:
        yield "rollout.temperature: training needs sampled responses; 0 takes the most likely token every time"


def _asynchronous(config: RunConfig) -> Iterator[str]:
    """Sampling ahead uses samples of older weights: what assumes that they are the newest cannot be used with it."""
    if not config.flow.asynchronous.enable:
        return
    key = "flow.asynchronous.enable"
    if config.actor.use_rollout_log_probs is not True:
        yield f"{key}: samples come from older weights; the ratio needs theirs: set actor.use_rollout_log_probs=true"
    if config.uses_critic:
        yield f"{key}: values are of newer weights than the samples; use an estimator without a critic, not gae"
    name = config.algorithm.adv_estimator
    if name in _NEWEST_WEIGHTS:
        yield f"{key}: algorithm.adv_estimator={name} asks the newest weights about each sample; use another one"
    if config.actor.policy_loss.loss_mode == "gpg":
        yield f"{key}: actor.policy_loss.loss_mode=gpg has no ratio that accounts for older weights; use another one"


def _supervised(config: RunConfig) -> Iterator[str]:
    sft = config.sft
    key = "train_batch_size" if sft.batch_size is None else "batch_size"
    batch = getattr(sft, key)
    micro = sft.micro_batch_size_per_gpu
    if micro is not None and micro > batch:
        yield f"sft.micro_batch_size_per_gpu: {micro} is more than sft.{key}, which is {batch}"
    if sft.before_rl and config.trainer.resume in ("last", "new"):
        yield f"trainer.resume: {config.trainer.resume} does not go with sft.before_rl; use auto or disable"


def _checkpoints(config: RunConfig) -> Iterator[str]:
    for owner in ("actor", "critic"):
        contents = getattr(config, owner).checkpoint
        unsaved = [part for part in contents.load_contents if part not in contents.save_contents]
        if unsaved:
            yield f"{owner}.checkpoint.load_contents: not in {owner}.checkpoint.save_contents: {', '.join(unsaved)}"
