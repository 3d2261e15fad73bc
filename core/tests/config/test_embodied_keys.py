"""Runs in environments: what fits their workers, where keys of other frameworks have gone, what means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from plugrl.config import RunConfig, load_config
from plugrl.config.embodied_checks import placed_problems
from plugrl.config.schema import EmbodiedModelConfig
from plugrl.envs.config import EnvParams
from plugrl.errors import ConfigError, NotRegistered
from plugrl.registry import registry_of
from plugrl.testing.reference import Case, cases

pytestmark = pytest.mark.usefixtures("toys")

BASE: dict[str, Any] = {
    "model": {"model_type": "toy", "num_action_chunks": 4, "action_dim": 7, "add_value_head": True},
    "env": {
        "train": {"env_type": "box", "total_num_envs": 8, "max_steps_per_rollout_epoch": 16},
        "eval": {"total_num_envs": 4, "max_steps_per_rollout_epoch": 16},
    },
    "rollout": {"name": "fast"},
    "actor": {"ppo_mini_batch_size": 32},
    "algorithm": {"adv_estimator": "gae"},
}


class BoxParams(EnvParams):
    """Settings of a pretended environment."""

    width: float = 1.0
    """Width."""


@pytest.fixture
def toys(installed: None) -> Iterator[None]:
    """An embodied model, an engine for it and an environment, as plugins would bring them."""
    model, engine, env = registry_of("model"), registry_of("engine"), registry_of("env")
    model.register_target("toy", "nowhere:build", meta={"schema": EmbodiedModelConfig, "category": "embodied"})
    model.register_target("free", "nowhere:build", meta={"schema": None, "category": "embodied"})
    engine.register_target(("embodied_model", "fsdp2", "*", None), "nowhere:engine", meta={"sections": ()})
    env.register_target("box", "nowhere:Box", meta={"schema": BoxParams})
    env.register_target("plain", "nowhere:Plain", meta={"schema": None})
    yield


def load(write: Any, *overrides: str, task: Any = "train", **sections: Any) -> RunConfig:
    values = {**BASE, **sections}
    return load_config(write(yaml.safe_dump(values)), overrides, task=task)


def of_case(write: Any, given: dict[str, Any]) -> RunConfig:
    """Load the base with the changes of a reference case, whose keys are those of the other framework."""
    overrides = [f"{key}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}"
                 for key, value in given["set"].items()]  # fmt: skip
    names = {item.partition("=")[0] for item in overrides}
    if "algorithm.adv_type" in names and "grpo" in str(given["set"]["algorithm.adv_type"]):
        overrides.append("env.train.auto_reset=false")  # groups compare one episode of each scene
    config = load(write, *overrides)
    problems = placed_problems(config, "train", {"env": given["env_world_size"], "actor": 1})
    if problems:
        raise ConfigError("\n".join(problems))
    return config


@pytest.mark.parametrize("case", cases("validate_embodied_cfg"))
def test_the_rules_of_the_reference(write: Any, case: Case) -> None:
    with case.outcome():
        config = of_case(write, dict(case.given))
        if "defaults" in case.expected:
            assert (config.rollout.temperature, config.rollout.top_p) == (0.7, 1.0)
            assert config.rollout.val_kwargs.temperature == 0.0 and config.rollout.top_k == -1


@pytest.mark.parametrize("case", cases("rollout_batch"))
def test_rows_make_whole_mini_batches(write: Any, case: Case) -> None:
    given = case.given
    with case.outcome():
        config = load(
            write, f"env.train.total_num_envs={given['rollout_size']}", "env.train.max_steps_per_rollout_epoch=4",
            f"actor.global_batch_size={given['global_batch_size']}", "env.eval=null",
            f"actor.micro_batch_size={given['micro_batch_size']}",
        )  # fmt: skip
        problems = placed_problems(config, "train", {"env": 1, "actor": given["world_size"]})
        if problems:
            raise ConfigError("\n".join(problems))
        mini = config.actor.ppo_mini_batch_size
        micro = config.actor.ppo_micro_batch_size_per_gpu
        # Optimizer steps as the reference counts them are those of each rank's share, here of two ranks together.
        assert given["rollout_size"] // mini * given["world_size"] == case.expected["optimizer_steps"]
        assert mini // given["world_size"] // micro == case.expected["micro_batches"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env.train.total_num_envs=0", "env.train.total_num_envs: must be at least 1"),
        ("env.train.env_type=bx", 'env.train.env_type: No env "bx". Did you mean "box"?'),
        ("env.train.init_params.widht=2", "env.train.init_params.widht: unknown key"),
        ("env.train.init_params.num_envs=3", "env.train.init_params.num_envs: is set by env.train.total_num_envs"),
        ("env.train.max_steps_per_rollout_epoch=null", "give it, or env.train.max_episode_steps"),
        ("algorithm.adv_estimator=gaee", "algorithm.adv_estimator: No advantage"),
        ("algorithm.loss_type=critic", "algorithm.loss_type: must be one of"),
        ("algorithm.eval_rollout_epoch=2", "it has moved to env.eval.rollout_epoch"),
        ("algorithm.length_params={}", "it has moved to rollout.sampling_params.max_new_tokens"),
        ("env.type=pusht", "environments are named by env.train.env_type"),
        ("rollout.n=4", "rollout.n: has no effect in a run with environments"),
        ("reward.name=exact_match", "reward.name: has no effect"),
        ("flow.chunk=2", "flow.chunk: has no effect"),
        ("actor.use_kl_loss=true", "actor.use_kl_loss: has no effect"),
        ("actor.loss_agg_mode=token-sum", "actor.loss_agg_mode: must be token-mean"),
        ("algorithm.rewards_lower_bound=0.1", "only with algorithm.filter_groups.enable=true"),
        ("rollout.sampling_params.temperature_eval=0.6", "only with rollout.val_kwargs.do_sample=true"),
        ("critic.enable=true", "critic.enable: the policy itself has the head for values"),
        ("model.model_type=tiny", "model.num_action_chunks: unknown key"),
        ("trainer.weight_sync_interval=0", "trainer.weight_sync_interval: must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_that_names_key_and_remedy(write: Any, override: str, words: str) -> None:
    with pytest.raises((ConfigError, NotRegistered)) as caught:
        load(write, override)
    assert words in str(caught.value)


def test_evaluation_follows_training_where_nothing_else_is_said(write: Any) -> None:
    config = load(write, "env.train.init_params.width=3", "env.train.max_episode_steps=12")
    assert config.env.eval is not None and config.env.train is not None
    assert (config.env.eval.env_type, config.env.eval.max_episode_steps) == ("box", 12)
    assert config.env.eval.init_params.width == 3 and not config.env.eval.auto_reset
    assert load(write, "env.train.init_params.width=3", "env.eval.init_params.width=5").env.eval.init_params.width == 5  # type: ignore[union-attr]
    assert not config.uses_critic and config.critic.model is None


def test_keys_of_environments_are_refused_in_text_and_free_for_supervised_training(write: Any) -> None:
    base = {"model": {"model_type": "tiny"}, "rollout": {"name": "fast", "n": 4}, "env": {},
            "data": {"train_files": ["a.jsonl"]}, "reward": {"name": "exact_match"}, "actor": {},
            "algorithm": {"adv_estimator": "grpo"}}  # fmt: skip
    load(write, **base)
    with pytest.raises(ConfigError, match="algorithm.reward_type: has an effect only with environments"):
        load(write, "algorithm.reward_type=chunk_level", **base)


def test_a_model_without_a_schema_takes_any_key(write: Any) -> None:
    config = load(write, "model.model_type=free", "model.hidden_size=12")
    assert config.model.hidden_size == 12  # type: ignore[attr-defined]
