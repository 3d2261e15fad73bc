"""Overrides in every form, other names of keys, and their conflicts."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.config.loader import fill_defaults, read_tree
from plugrl.config.overrides import parse_override
from plugrl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=c", ("a", "b"), "c"),
        ("--a.b=c", ("a", "b"), "c"),
        ("--actor.clip-ratio=0.3", ("actor", "clip_ratio"), 0.3),
        ("+a.b=1e-5", ("a", "b"), 1e-5),
        ("++a=true", ("a",), True),
        ("a.b=[1,2]", ("a", "b"), [1, 2]),
        ("a={b: 1}", ("a",), {"b": 1}),
        ("a.b=", ("a", "b"), None),
        ("a.b=x=y", ("a", "b"), "x=y"),
        ("cluster.component_placement.actor,ref=0-1", ("cluster", "component_placement", "actor,ref"), "0-1"),
    ],
)
def test_forms_of_overrides(text: str, path: tuple[str, ...], value: object) -> None:
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize("text", ["a.b", "--flag", "=3", "a..b=1", ".a=1", "a b=1", "a.b: 1"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an override; write key=value"):
        parse_override(text)


def test_a_value_that_is_no_yaml_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"^a\.b: .*put a text with special signs in quotes"):
        parse_override("a.b=[1")


def test_prefix_and_aliases_reach_the_same_keys(write: Any) -> None:
    path = write(
        "actor_rollout_ref: {actor: {ppo_epochs: 2}, rollout: {n: 3}, model: {path: x}}\ntrainer: {resume_mode: auto}\n"
    )
    tree = read_tree(path, ["actor_rollout_ref.rollout.n=5", "actor.model.seed=3"])
    assert tree.values == {
        "actor": {"ppo_epochs": 2},
        "rollout": {"n": 5},
        "model": {"path": "x", "seed": 3},
        "trainer": {"resume": "auto"},
    }
    assert tree.origin(("rollout", "n")) == "command line"
    assert tree.origin(("actor", "ppo_epochs")) == f"{path}, line 1"


def test_two_names_of_one_key_must_agree(write: Any) -> None:
    path = write("rollout: {n: 3}\nactor_rollout_ref: {rollout: {n: 4}}\n")
    with pytest.raises(ConfigError, match=r"^rollout\.n is given twice with different values: 3 .*line 1.* and 4"):
        read_tree(path)


def test_an_override_replaces_a_mapping_and_a_key_replaces_a_part(write: Any) -> None:
    path = write("data: {source_options: {min: 1, max: 9}}\n")
    assert read_tree(path, ["data.source_options.max=5"]).find(("data", "source_options")) == {"min": 1, "max": 5}
    assert read_tree(path, ["data.source_options={max: 5}"]).find(("data", "source_options")) == {"max": 5}
    assert read_tree(path, ["data.source_options={}"]).find(("data", "source_options")) == {}


def test_a_key_below_a_value_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"^data\.source\.x: data\.source is the value 'files', it has no keys"):
        read_tree(write("data: {source: files}\n"), ["data.source.x=1"])


def test_keys_follow_others_unless_given(write: Any) -> None:
    path = write(
        "actor: {use_dynamic_bsz: true, ppo_max_token_len_per_gpu: 99}\nref: {log_prob_use_dynamic_bsz: false}\n"
    )
    tree = read_tree(path)
    fill_defaults(tree)
    assert tree.find(("ref", "log_prob_use_dynamic_bsz")) is False
    assert tree.find(("ref", "log_prob_max_token_len_per_gpu")) == 99
    assert tree.find(("rollout", "log_prob_use_dynamic_bsz")) is True
    assert tree.find(("critic", "ppo_max_token_len_per_gpu")) == 99


def test_an_override_is_where_its_value_comes_from_whatever_it_is(write: Any) -> None:
    path = write("trainer: {project_name: mine, seed: 1}\n")
    for value in ("{a: b}", "[1]", "x"):
        assert read_tree(path, [f"trainer.project_name={value}"]).origin(("trainer", "project_name")) == "command line"
    assert "line" in read_tree(path, ["trainer.project_name=x"]).origin(("trainer", "seed"))


def test_a_value_for_the_bare_prefix_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match="actor_rollout_ref: must be a section with keys, not 5"):
        read_tree(write("actor_rollout_ref: 5\n"))
