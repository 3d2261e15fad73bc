"""Adapters under the key names of other trainers, and what a run makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugrl.config import RunConfig, load_config
from plugrl.config.schema import ModelConfig
from plugrl.config.schema.model import ADAPTER_CONFIG
from plugrl.errors import ConfigError

from .conftest import BASE

pytestmark = pytest.mark.usefixtures("installed")


def load(write: Any, *overrides: str) -> RunConfig:
    return load_config(write(BASE), overrides)


def test_every_spelling_means_the_same_block(write: Any) -> None:
    ours = load(write, "model.lora={rank: 8, alpha: 4, target_modules: [q, k]}")
    for spelling in (
        ["--peft.r=8", "--peft.lora_alpha=4", "--peft.target_modules=[q, k]", "--peft.method_type=LORA"],
        ["model.lora_rank=8", "model.lora_alpha=4", "model.target_modules=[q, k]"],
        ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=4", "model.target_modules=[q, k]"],
        ["actor.model.lora_rank=8", "model.lora.alpha=4", "actor.model.target_modules=[q, k]"],
    ):
        found = load(write, *spelling)
        assert found.model == ours.model and found.model.trains_adapter
    full = load(write, "--peft.full_training_modules=[head]", "--peft.init_type=GAUSSIAN", "--peft.target_modules=null")
    assert full.model.lora is not None
    assert (full.model.lora.modules_to_save, full.model.lora.init, full.model.lora.rank) == (("head",), "gaussian", 16)
    empty = load(write, "--peft.full_training_modules=null", "--peft.init_type=null", "--peft.method_type=null")
    assert empty.model.lora is not None and empty.model.lora.modules_to_save == ()


@pytest.mark.parametrize(
    ("overrides", "trained"),
    [
        ([], False),
        (["model.lora={}"], True),
        (["model.is_lora=true", "model.lora_rank=32"], True),
        (["model.is_lora=false", "model.lora_rank=32", "model.lora_path=somewhere"], False),
        (["model.lora_rank=0", "model.lora_alpha=16"], False),
        (["model.lora_path=somewhere"], True),
    ],
)
def test_what_switches_it_on(write: Any, overrides: list[str], trained: bool) -> None:
    assert load(write, *overrides).model.trains_adapter == trained


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("peft.rr=8", r"model\.lora\.rr"),
        ("peft.method_type=MISS", r"model\.lora\.method"),
        ("peft.r=-1", r"model\.lora\.rank"),
        ("peft.init_type=pissa", r"model\.lora\.init"),
    ],
)
def test_a_wrong_value_names_the_key(write: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write, override)


def test_a_new_adapter_makes_the_actor_its_own_reference(write: Any, tmp_path: Path) -> None:
    on = ("model.lora.rank=4", "actor.use_kl_loss=true")
    assert load(write, *on).reference_is_actor
    # With devices of its own, from an adapter that was trained before, or from one that changes something at once.
    assert not load(write, *on, "cluster.component_placement={'actor,rollout': 0, ref: 1}").reference_is_actor
    assert not load(write, *on, "model.lora.path=somewhere").reference_is_actor
    assert not load(write, *on, "model.lora.init=random").reference_is_actor
    assert not load(write, "actor.use_kl_loss=true").reference_is_actor
    (tmp_path / ADAPTER_CONFIG).write_text("{}")
    held = ModelConfig(path=str(tmp_path), lora={"rank": 4})
    assert held.trains_adapter and not held.starts_adapter
