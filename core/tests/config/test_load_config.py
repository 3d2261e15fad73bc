"""The whole way: file, overrides, what plugins bring, checks, and errors that say how to mend them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from plugrl.config import RunConfig, load_config
from plugrl.config.loader import narrow_plugins, read_tree
from plugrl.config.show import schema_text, to_yaml
from plugrl.errors import ConfigError, DuplicateRegistration, EngineNotFound, ModelNotFound, NotRegistered, PluginError
from plugrl.registry import registry_of

from .conftest import BASE, EngineSection, FakeSection, OptionsSection

pytestmark = pytest.mark.usefixtures("installed")


def load(write: Any, *overrides: str, **options: Any) -> RunConfig:
    return load_config(write(BASE), overrides, **options)


def failure(write: Any, *overrides: str, **options: Any) -> str:
    with pytest.raises((ConfigError, NotRegistered)) as caught:
        load(write, *overrides, **options)
    return str(caught.value)


def test_values_overrides_and_defaults(write: Any) -> None:
    config = load(write, "--actor.optim.lr=1e-5", "trainer.logger=console", "data.train_batch_size=32")
    assert config.actor.optim.lr == 1e-5
    assert config.trainer.logger == ("console",)
    assert config.actor.clip_ratio_c == 3.0 and config.rollout.val_kwargs.temperature == 0.0
    assert config.algorithm.kl_ctrl.kl_coef == 0.001 and config.actor.kl_loss_type == "low_var_kl"
    assert not config.uses_critic and not config.uses_reference


def test_the_configuration_is_frozen(write: Any) -> None:
    config = load(write)
    with pytest.raises(ValueError, match="frozen"):
        config.actor.ppo_epochs = 3  # type: ignore[misc]


def test_sections_of_plugins_are_typed(write: Any) -> None:
    config = load(write, "actor.fake_config.offload=true", "model.layers=3", "rollout.options.chunk=4")
    assert isinstance(config.actor.fake_config, EngineSection) and config.actor.fake_config.offload  # type: ignore[attr-defined]
    assert config.ref.fake_config == EngineSection()  # type: ignore[attr-defined]
    assert config.model.layers == 3  # type: ignore[attr-defined]
    assert config.rollout.options == OptionsSection(chunk=4)


def test_keys_that_a_plugin_keeps_in_its_section_may_stand_elsewhere(write: Any) -> None:
    config = load(write, "speed.off=true", "speed.visible_devices=x", "ref.fake_config.visible_devices=y")
    own = load(
        write, "actor.fake_config={offload: true, visible_devices: x}", "critic.fake_config.offload=true",
        "critic.fake_config.visible_devices=x", "ref.fake_config={offload: true, visible_devices: y}",
    )  # fmt: skip
    assert config == own
    assert load(write, "actor.engine=fsdp2").actor.strategy == "fsdp2"
    for text in (
        failure(write, "speed.off=true", "actor.fake_config.offload=false"),
        failure(write, "actor.fake_config.offload=false", "speed.off=true"),
    ):
        assert "actor.fake_config.offload is given twice" in text and "speed.off" in text
    assert "actor.fake_config.visble_devices: unknown key" in failure(write, "speed.visble_devices=x")


@pytest.mark.parametrize(
    ("override", "key", "remedy"),
    [
        ("--dataset.repo_id=someone/something", "dataset", "data.source=lerobot"),
        ("--policy.type=act", "policy", "use model"),
        ("--optimizer.type=adamw", "sft.optim.type", "AdamW"),
        ("--wandb.enable=true", "wandb", "trainer.logger"),
    ],
)
def test_keys_of_another_trainer_name_their_counterpart(write: Any, override: str, key: str, remedy: str) -> None:
    text = failure(write, override)
    assert text.startswith(f"{key}: unknown key; ") and remedy in text


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("actor.clip_ration=1", ["actor.clip_ration: unknown key", "did you mean actor.clip_ratio?", "command line"]),
        ("trainer.clip_ratio=1", ["did you mean actor.clip_ratio?"]),
        ("actor.fake_config.visble_devices=x", ["'s section", "did you mean actor.fake_config.visible_devices?"]),
        ("model.layer=2", ["did you mean model.layers?"]),
        ("rollout.options.chunck=2", ["did you mean rollout.options.chunk?"]),
        ("actor.grad_clip=1", ["actor.optim.clip_grad"]),
        ("nonsense.x=1", ["nonsense: unknown key", "known here: actor, algorithm"]),
        ("plugins.alow=[a]", ["did you mean plugins.allow?"]),
        ("actor.ppo_epochs=two", ["actor.ppo_epochs: must be a whole number, not 'two'"]),
        ("actor.ppo_epochs=0", ["must be at least 1, not 0"]),
        ("rollout.top_p=0", ["must be more than 0, not 0"]),
        ("actor.optim=3", ["actor.optim: must be a section with keys, not 3"]),
        ("actor.loss_agg_mode=token-maen", ["must be one of token-mean", "did you mean token-mean?"]),
        ("actor.use_rollout_log_probs=7", ["must be true or false or one of auto, not 7"]),
        ("actor.optim.lr=nan", ["actor.optim.lr: must be a finite number"]),
        ("reward.function=x.y", ["reward.function: must be a text of the form"]),
        ("trainer.resume=atuo", ["must be auto, disable or the folder of a checkpoint", "did you mean auto?"]),
        ("actor.ppo_mini_batch_size=24", ["24 does not divide data.train_batch_size, which is 64"]),
        ("actor.ppo_mini_batch_size=128", ["128 is more than data.train_batch_size"]),
        ("reward.name=null", ["reward.name: give the name of a reward"]),
        ("reward.function='a:b'", ["give reward.name or reward.function, not both"]),
        ("rollout.n=1", ["rollout.n: algorithm.adv_estimator=grpo", "2 or more"]),
        ("rollout.temperature=0", ["rollout.temperature: training needs sampled responses"]),
        ("data.template=hello", ["data.template: must contain {prompt}"]),
        ("data.train_files=x.jsonl", ["data.source: arithmetic reads no files"]),
        ("data.source=files", ["data.train_files: give at least one file"]),
        ("algorithm.kl_ctrl.type=adaptive", ["only with algorithm.use_kl_in_reward=true"]),
        ("actor.checkpoint.save_contents=[model]", ["actor.checkpoint.load_contents: not in", "optimizer, extra"]),
        (
            "reward.overlong_buffer={enable: true, len: 9999}",
            ["reward.overlong_buffer.len: 9999 is more than data.max_r"],
        ),
        ("trainer.critic_warmup=3", ["trainer.critic_warmup: there is no critic"]),
        ("trainer.logger=wandbb", ["trainer.logger: ", '"wandbb"', "wandb", "tensorboard"]),
        ("algorithm.adv_estimator=grop", ["algorithm.adv_estimator: ", '"grop"', '"grpo"']),
        ("actor.policy_loss.loss_mode=vanila", ["actor.policy_loss.loss_mode: ", "vanilla"]),
        ("reward.name=gsm8", ["reward.name: ", "gsm8k"]),
        ("data.source=arithmetics", ["data.source: ", "arithmetic"]),
        ("platform=gpu", ["platform: ", "cpu"]),
        ("rollout.name=fats", ["rollout.name: ", "fast"]),
    ],
)
def test_a_mistake_is_one_line_that_names_key_and_remedy(write: Any, override: str, parts: list[str]) -> None:
    text = failure(write, override)
    assert all(part in text for part in parts), text
    assert "\n" not in text
    assert text.startswith(override.partition("=")[0].split(".")[0]) or "data.train_files" in text + override


def test_unknown_model_and_engine_have_their_own_errors(write: Any) -> None:
    with pytest.raises(ModelNotFound, match=r'^model\.model_type: No model "tinny".*tiny'):
        load(write, "model.model_type=tinny")
    with pytest.raises(EngineNotFound, match=r'^actor\.strategy: No engine "fsdp3" for a language_model.*fsdp2'):
        load(write, "actor.strategy=fsdp3")


def test_several_mistakes_come_in_one_message_with_their_lines(write: Any) -> None:
    path = write(BASE.replace("n: 4", "n: four, temprature: 1"))
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["actor.ppo_epochs=x"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3  # critic.ppo_epochs follows the actor's and is not reported again
    assert any(line.startswith("rollout.n: ") and f"{path}, line 3" in line for line in lines)
    assert any("did you mean rollout.temperature?" in line for line in lines)


def test_show_loads_as_the_same_configuration(write: Any) -> None:
    config = load(
        write, "model.config={a: '1e-3', b: [1, null]}", "actor.optim.lr=3e-7", "data.template='no: {prompt}'"
    )
    again = load_config(write(to_yaml(config), "again.yaml"))
    assert again == config


def test_configurations_travel_between_processes(write: Any) -> None:
    config = load(write, "actor.fake_config.offload=true")
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config and type(copy) is type(config)
    assert pickle.loads(pickle.dumps(config.actor)) == config.actor


def test_the_critic_has_the_policys_model_but_for_what_it_sets(write: Any) -> None:
    config = load(write, "algorithm.adv_estimator=gae", "model.layers=5", "model.seed=7", "critic.model.layers=9")
    assert config.uses_critic and config.critic.model is not None
    assert config.critic.model.model_type == "tiny_value"
    assert config.critic.model.layers == 9 and config.critic.model.seed == 7  # type: ignore[attr-defined]
    assert "critic.enable" in failure(write, "algorithm.adv_estimator=gae", "critic.enable=false")


def test_a_run_without_critic_has_no_critic_model(write: Any) -> None:
    assert load(write).critic.model is None


def test_paths_become_absolute(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    overrides = [
        "data.source=files",
        "data.train_files=a.jsonl",
        "data.val_files=[b.jsonl, /c.jsonl]",
        "model.path=weights",
    ]
    config = load(write, *overrides, "trainer.experiment_name=one", "trainer.resume=weights")
    assert config.data.train_files == (str(tmp_path / "a.jsonl"),)
    assert config.data.val_files == (str(tmp_path / "b.jsonl"), "/c.jsonl")
    assert config.model.path == str(tmp_path / "weights") == config.trainer.resume
    assert config.trainer.default_local_dir == str(tmp_path / "outputs" / "plugrl" / "one")
    assert load(write, "model.path=some/name").model.path == "some/name"


def test_a_rule_of_one_task_is_not_held_against_another(write: Any) -> None:
    assert load(write, "reward.name=null", task="sft")
    assert load(write, "actor.ppo_mini_batch_size=24", "rollout.temperature=0", task="eval")
    assert "reward.name" in failure(write, "reward.name=null", "sft.stop_at_accuracy=0.5", task="sft")


def test_options_of_one_run_narrow_the_plugins(write: Any) -> None:
    assert load(write, plugin_options=["no:engine_fsdp"]).plugins.deny == ("engine_fsdp",)
    config = load(write, "plugins.deny=[a]", plugin_options=["no:b"])
    assert config.plugins.deny == ("a", "b")


def test_one_key_cannot_have_two_schemas(write: Any) -> None:
    other = (FakeSection("fake_config", OptionsSection),)
    registry_of("engine").register_target(("language_model", "x", "*", None), "no:where", meta={"sections": other})
    with pytest.raises(DuplicateRegistration, match=r"fake_config is claimed by"):
        load(write)


@pytest.mark.parametrize(
    ("key", "schema", "words"),
    [("optim", EngineSection, "key of the core"), ("acme_config", "no_such_module_here:C", "failed to load")],
)
def test_a_section_that_cannot_be_had_stops_only_who_uses_it(
    write: Any, caplog: pytest.LogCaptureFixture, key: str, schema: Any, words: str
) -> None:
    registry_of("engine").register_target(
        ("language_model", "acme", "*", None), "no:where", meta={"sections": (FakeSection(key, schema),)}
    )
    load(write)
    assert words in caplog.text and "engine acme cannot be used" in caplog.text
    with pytest.raises(PluginError, match=words):
        load(write, "actor.strategy=acme")
    if key == "acme_config":
        with pytest.raises(PluginError, match=words):
            load(write, "actor.acme_config.x=1")


@pytest.mark.parametrize(
    "key", ["model.model_type", "rollout.name", "algorithm.adv_estimator", "critic.model.model_type"]
)
@pytest.mark.parametrize("value", ["[a]", "{a: b}"])
def test_a_name_that_is_no_text_is_refused_like_any_other_value(write: Any, key: str, value: str) -> None:
    assert f"{key}: must be a text, not" in failure(write, f"{key}={value}")


@pytest.mark.parametrize("section", ["actor", "critic", "ref", "trainer", "rollout", "model", "plugins"])
@pytest.mark.parametrize("value", ["5", "[1]", "abc"])
def test_a_section_that_is_none_is_refused_by_its_own_name(write: Any, section: str, value: str) -> None:
    assert f"{section}: must be a section with keys, not" in failure(write, f"{section}={value}")


def test_true_is_no_number(write: Any) -> None:
    assert "trainer.seed: must be a number, not True (command line)" in failure(write, "trainer.seed=true")
    assert "actor.optim.lr: must be a number, not False" in failure(write, "actor.optim.lr=false")
    assert load(write, "trainer.val_before_train=true").trainer.val_before_train


def test_a_section_written_with_dots_in_a_file_is_explained(write: Any) -> None:
    with pytest.raises(ConfigError, match="trainer.seed: unknown key: in a file, write a section below its name"):
        load_config(write(BASE + "trainer.seed: 3\n"))


@pytest.mark.parametrize(("deny", "expected"), [("abc", ["abc", "x"]), ("[a, b]", ["a", "b", "x"])])
def test_a_single_text_in_a_list_of_plugins_is_one_plugin(write: Any, deny: str, expected: list[str]) -> None:
    tree = read_tree(write(""), [f"plugins.deny={deny}", "plugins.allow=a-b"])
    narrow_plugins(tree, ["no:x", "a", "a_b"])
    assert tree.find(("plugins", "deny")) == expected and tree.find(("plugins", "allow")) == ["a_b"]


def test_a_models_own_rule_is_reported_at_the_model(write: Any) -> None:
    assert failure(write, "model.layers=x").startswith("model.layers: must be a whole number")


def test_the_schema_explains_every_key(write: Any) -> None:
    schema = type(load(write))
    text = schema_text(schema)
    assert "actor.fake_config.visible_devices: all   (text)" in text
    assert "actor.optim.lr: 1e-06   (number)" in text
    assert "loss_agg_mode: token-mean   (token-mean | token-sum" in text
    assert schema_text(schema, "actor.optim").startswith("\nactor.optim:")
    with pytest.raises(ConfigError, match=r"did you mean actor\.optim"):
        schema_text(schema, "actor.optm")


def test_every_key_has_a_description() -> None:
    from plugrl.config.show import describe_keys

    assert [key.path for key in describe_keys(RunConfig) if not key.description] == []
