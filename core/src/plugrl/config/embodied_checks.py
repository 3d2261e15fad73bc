"""What one key says about another in a run with environments, and what its keys mean elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from plugrl.config.schema import EnvConfig, RunConfig, TrainEnvConfig
from plugrl.config.schema.env import GIVEN_BY_THE_RUN
from plugrl.plugins.entries import MODEL_CATEGORIES
from plugrl.registry import registry_of

Task = Literal["train", "sft", "eval", "demos"]
"""What a configuration is used for; a rule that concerns only one task is not held against another."""

_GROUPED = frozenset({"grpo", "grpo_dynamic"})
"""Estimators that compare the scenes of a group."""

_ONLY_HERE: tuple[tuple[str, ...], ...] = (
    ("algorithm", "loss_type"),
    ("algorithm", "reward_type"),
    ("algorithm", "logprob_type"),
    ("algorithm", "entropy_type"),
    ("algorithm", "bootstrap_type"),
    ("algorithm", "normalize_advantages"),
    ("algorithm", "rewards_lower_bound"),
    ("algorithm", "rewards_upper_bound"),
    ("algorithm", "huber_delta"),
    ("algorithm", "clip_log_ratio_min"),
    ("algorithm", "clip_log_ratio_max"),
    ("rollout", "pipeline_stage_num"),
    ("trainer", "weight_sync_interval"),
)
"""Keys that mean nothing to a run without environments."""

_ONLY_ELSEWHERE: tuple[tuple[str, ...], ...] = (
    ("actor", "use_dynamic_bsz"),
    ("actor", "use_kl_loss"),
    ("actor", "loss_scale_factor"),
    ("actor", "policy_loss"),
    ("actor", "use_rollout_log_probs"),
    ("algorithm", "use_kl_in_reward"),
    ("algorithm", "norm_adv_by_std_in_grpo"),
    ("rollout", "n"),
    ("rollout", "ignore_eos"),
    ("rollout", "max_batch_size"),
    ("rollout", "options"),
    ("reward", "name"),
    ("reward", "function"),
    ("flow", "chunk"),
    ("flow", "phases"),
    ("flow", "asynchronous"),
    ("sft", "before_rl"),
)
"""Keys that mean nothing to a run with environments."""

_AGGREGATIONS = ("token-mean", "seq-mean-token-mean")


def without_environments(config: RunConfig) -> Iterator[str]:
    """Yield keys that were given and need `env.train`."""
    if config.is_embodied:  # supervised training of a policy that is trained in environments later
        return
    for path in _ONLY_HERE:
        if _differs(config, path):
            yield f"{'.'.join(path)}: has an effect only with environments (env.train)"


def embodied_problems(config: RunConfig, task: Task) -> Iterator[str]:
    """Yield what is wrong with a run in environments that can be known without its devices."""
    category = _category(config.model.model_type)
    if category != "embodied":
        yield (
            f"model.model_type: {config.model.model_type} is a model of the category {category}, and environments "
            "need one of the category embodied"
        )
    yield from _splits(config, task)
    drawn = config.rollout.val_kwargs
    if drawn.temperature > 0 and not drawn.do_sample:
        yield "rollout.val_kwargs.temperature: has an effect only with rollout.val_kwargs.do_sample=true"
    if task != "train" or config.env.train is None:
        return
    for path in _ONLY_ELSEWHERE:
        if _differs(config, path):
            yield f"{'.'.join(path)}: has no effect in a run with environments; leave it out"
    yield from _estimators(config, config.env.train)
    yield from _critics(config)
    if config.actor.loss_agg_mode not in _AGGREGATIONS:
        yield (
            f"actor.loss_agg_mode: must be token-mean or, normalised by the lengths of episodes, seq-mean-token-mean "
            f"with environments, not {config.actor.loss_agg_mode}"
        )


def demos_problems(config: RunConfig) -> Iterator[str]:
    """Yield what is wrong with the environments in which demonstrations are to be collected."""
    if config.env.demos is None and config.env.train is None:
        yield "env.demos: must be given to collect demonstrations, or env.train"
        return
    name = "env.demos" if config.env.demos is not None else "env.train"
    yield from _given_twice(name, config.env.demos or config.env.train)


def placed_problems(config: RunConfig, task: Task, ranks: dict[str, int]) -> list[str]:
    """Return what does not fit so many ranks of each component (`env`, `actor`), one line each."""
    found: list[str] = []
    for name, split in _measured(config, task):
        found += _shares(name, split, ranks.get("env", 1), config.rollout.pipeline_stage_num)
    if task == "train" and config.env.train is not None:
        found += _batches(config, config.env.train, ranks.get("actor", 1))
    return found


def rows_of_step(config: RunConfig, split: EnvConfig) -> int | None:
    """Return how many chunks all scenes give in one step of training, None where the environment alone knows."""
    steps = split.steps
    return None if steps is None else split.total_num_envs * split.rollout_epoch * (steps // chunk_of(config))


def chunk_of(config: RunConfig) -> int:
    """Return how many actions the policy gives at once."""
    return int(getattr(config.model, "num_action_chunks", 1))


# --------------------------------------------------------------------- rules
def _splits(config: RunConfig, task: Task) -> Iterator[str]:
    if task == "train" and config.env.train is None:
        yield "env.train: must be given to train in environments"
    if config.env.eval is None and (task == "eval" or config.trainer.test_freq > 0):
        key = "env.eval: must be given to evaluate"
        yield key if task == "eval" else f"{key} every trainer.test_freq={config.trainer.test_freq} steps"
    chunk = chunk_of(config)
    for name, split in _measured(config, task):
        yield from _given_twice(name, split)
        steps = split.steps
        if steps is None and (split.auto_reset or name == "env.train"):
            yield f"{name}.max_steps_per_rollout_epoch: give it, or {name}.max_episode_steps"
        elif steps is not None and steps % chunk:
            key = "max_steps_per_rollout_epoch" if split.max_steps_per_rollout_epoch else "max_episode_steps"
            yield f"{name}.{key}: {steps} is no multiple of model.num_action_chunks, which is {chunk}"


def _given_twice(name: str, split: EnvConfig | None) -> Iterator[str]:
    for key in GIVEN_BY_THE_RUN:
        if split is not None and key in getattr(split.init_params, "model_fields_set", ()):
            own = "total_num_envs" if key == "num_envs" else key
            yield f"{name}.init_params.{key}: is set by {name}.{own}"


def _estimators(config: RunConfig, train: TrainEnvConfig) -> Iterator[str]:
    estimator, size = config.algorithm.adv_estimator.lower(), train.group_size
    baseline = estimator == "reinpp" and config.algorithm.options.get("use_reinpp_baseline")
    frames = estimator == "grpo_video" and config.algorithm.options.get("mode", "frame") == "frame"
    if (estimator in _GROUPED or baseline or frames) and size < 2:
        yield (
            f"env.train.group_size: algorithm.adv_estimator={config.algorithm.adv_estimator} compares the scenes of a "
            f"group and needs 2 or more, not {size}"
        )
    if estimator in _GROUPED and train.auto_reset:
        yield (
            f"env.train.auto_reset: algorithm.adv_estimator={config.algorithm.adv_estimator} compares one episode of "
            "each scene; set it to false"
        )
    filters = config.algorithm.filter_groups.enable
    bounds = (config.algorithm.rewards_lower_bound, config.algorithm.rewards_upper_bound)
    if filters and size < 2:
        yield f"algorithm.filter_groups.enable: leaves out groups of scenes; env.train.group_size is {size}"
    if filters and bounds == (None, None):
        yield "algorithm.filter_groups.enable: give algorithm.rewards_lower_bound or algorithm.rewards_upper_bound"
    if not filters and bounds != (None, None):
        key = "rewards_lower_bound" if bounds[0] is not None else "rewards_upper_bound"
        yield f"algorithm.{key}: has an effect only with algorithm.filter_groups.enable=true"
    if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
        yield f"algorithm.rewards_lower_bound: {bounds[0]} is more than rewards_upper_bound, which is {bounds[1]}"
    if not train.reset_each_epoch and (not train.auto_reset or train.overlap_reset):
        other = "overlap_reset=false" if train.auto_reset else "auto_reset=true"
        yield f"env.train.reset_each_epoch: false lets episodes go on, which needs env.train.{other}"


def _critics(config: RunConfig) -> Iterator[str]:
    wants = loss_type_of(config) != "actor" or config.algorithm.adv_estimator.lower() == "gae"
    if wants and not getattr(config.model, "add_value_head", True):
        reason = f"algorithm.adv_estimator={config.algorithm.adv_estimator}, loss type {loss_type_of(config)}"
        yield f"model.add_value_head: must be true for {reason}"
    if config.critic.enable:
        yield "critic.enable: the policy itself has the head for values (model.add_value_head); leave it out"
    if config.trainer.critic_warmup and not wants:
        yield "trainer.critic_warmup: no values are learned; use adv_estimator=gae"


def _shares(name: str, split: EnvConfig, workers: int, stages: int) -> Iterator[str]:
    total = split.total_num_envs
    each, rest = divmod(total, workers)
    if rest:
        yield f"{name}.total_num_envs: {total} scenes cannot be shared out evenly to {workers} workers of env"
    elif each % stages:
        yield (
            f"rollout.pipeline_stage_num: {stages} does not divide the {each} scenes of a worker "
            f"({name}.total_num_envs {total}, {workers} workers of env)"
        )
    elif each // stages % split.group_size:
        yield (
            f"{name}.group_size: {split.group_size} does not divide the {each // stages} scenes that are stepped at "
            f"once ({name}.total_num_envs {total}, {workers} workers of env, rollout.pipeline_stage_num {stages})"
        )


def _batches(config: RunConfig, train: TrainEnvConfig, ranks: int) -> Iterator[str]:
    rows, mini = rows_of_step(config, train), config.actor.ppo_mini_batch_size
    if rows is None:
        return
    origin = (
        f"{rows} chunks of a step (env.train.total_num_envs {train.total_num_envs} x max_steps_per_rollout_epoch "
        f"{train.steps} / num_action_chunks {chunk_of(config)} x rollout_epoch {train.rollout_epoch})"
    )
    if rows % mini:
        yield f"actor.ppo_mini_batch_size: {mini} does not divide the {origin}"
    elif mini % ranks:
        yield f"actor.ppo_mini_batch_size: {mini} cannot be shared out evenly to {ranks} ranks of actor"


# --------------------------------------------------------------------- details
def loss_type_of(config: RunConfig) -> str:
    """Return `algorithm.loss_type`, resolved."""
    given = config.algorithm.loss_type
    return given or ("actor_critic" if config.algorithm.adv_estimator.lower() == "gae" else "actor")


def _measured(config: RunConfig, task: Task) -> Iterator[tuple[str, EnvConfig]]:
    if task == "train" and config.env.train is not None:
        yield "env.train", config.env.train
    if config.env.eval is not None and task in ("train", "eval"):
        yield "env.eval", config.env.eval


def _category(model_type: str) -> str:
    return str(registry_of("model").entry(model_type).meta.get("category") or MODEL_CATEGORIES[0])


def _differs(config: Any, path: Sequence[str]) -> bool:
    node: Any = config
    for name in path[:-1]:
        node = getattr(node, name)
    default = type(node).model_fields[path[-1]].get_default(call_default_factory=True)
    value = getattr(node, path[-1])
    return bool(value != default) and value not in ({}, None)
