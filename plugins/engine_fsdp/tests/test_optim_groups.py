"""Learning rates by group, and where fp32 masters may be used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import block_policy as bp
import pytest
import torch

from plugrl.engines.base import BatchOptions
from plugrl.errors import ConfigError
from plugrl.models import MODELS, register_model
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl_engine_fsdp.backends import DdpEngine
from plugrl_engine_fsdp.fp32_master import FP32MasterAdamW
from plugrl_engine_fsdp.optim import OptimizerSettings, Schedule, build_optimizer, parameter_groups

MODEL = {"model_type": "engine_test_blocks", "precision": "fp32", "blocks": 1}


class _WithValues(bp.BlockPolicy):
    def critic_parameters(self) -> tuple[str, ...]:
        return ("blocks.2.out.weight", "blocks.2.out.bias")


def _groups(policy: Any, **options: Any) -> dict[float, int]:
    settings = OptimizerSettings.from_config({"lr": 1.0, **options})
    return {group["lr"]: len(group["params"]) for group in parameter_groups(policy, settings)}


def test_rates_of_the_value_head_and_of_parts_of_names() -> None:
    policy = _WithValues()
    count = sum(1 for _ in policy.parameters())
    assert _groups(policy) == {1.0: count}
    assert _groups(policy, value_lr=5.0) == {1.0: count - 2, 5.0: 2}
    # The longest part counts, and a factor works on the value head's own rate.
    parts = {"blocks": 0.5, "blocks.2.out": 3.0}
    assert _groups(policy, value_lr=5.0, lr_multipliers=parts) == {1.0: 1, 0.5: count - 3, 15.0: 2}
    policy.embed.requires_grad_(False)
    assert _groups(policy) == {1.0: count - 1}


def test_a_multiplier_without_a_parameter_and_a_rate_without_a_value_head_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=r"optim.lr_multipliers: .*'model.blocks.0.outt'.*model.blocks.0.out"):
        _groups(bp.BlockPolicy(), lr_multipliers={"model.blocks.0.outt": 2.0})
    with caplog.at_level(logging.WARNING):
        assert list(_groups(bp.BlockPolicy(), value_lr=5.0)) == [1.0]
    assert "optim.value_lr" in caplog.text


def test_the_schedule_scales_every_group_from_its_own_rate() -> None:
    settings = OptimizerSettings.from_config({"lr": 1.0, "value_lr": 4.0, "lr_warmup_steps": 2})
    optimizer = build_optimizer(parameter_groups(_WithValues(), settings), settings)
    schedule = Schedule(optimizer, settings)
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2.0]


@pytest.fixture
def blocks() -> Iterator[None]:
    with MODELS.temporary(), use_platform(CpuPlatform()):
        register_model("engine_test_blocks", bp.build)
        yield


def test_fp32_masters_need_no_shard_or_the_word_of_the_user(blocks: None) -> None:
    engine = DdpEngine(MODEL, {}, {"use_fp32_master_params": True})
    with pytest.raises(ConfigError, match=r"optim.use_fp32_master_params.*no_shard.*fp32_master_any_layout"):
        engine.initialize()


def test_an_engine_keeps_small_updates_of_bf16_weights(blocks: None) -> None:
    optim = {"lr": 1e-5, "weight_decay": 0.0, "use_fp32_master_params": True, "fp32_master_any_layout": True}
    engine = DdpEngine({**MODEL, "precision": "bf16"}, {"model_dtype": "bf16"}, optim)
    engine.initialize()
    assert isinstance(engine.optimizer, FP32MasterAdamW)
    before = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
    with engine.train_mode():
        for _ in range(2):
            engine.train_batch(bp.make_rows(4), bp.token_mean_loss, BatchOptions())
    for name, parameter in engine.module.named_parameters():
        master = engine.optimizer.state[parameter]["fp32_master_param"]
        assert parameter.dtype == torch.bfloat16 and torch.equal(parameter, master.bfloat16())
        moved = (master - before[name].float()).abs().max()
        assert 0 < moved <= 2.1e-5, name
