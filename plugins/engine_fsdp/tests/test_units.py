"""Checks that need one process: configuration, precision, units, schedule, manifest, faults of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import block_policy as bp
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from plugrl.engines.base import BatchOptions
from plugrl.engines.registry import EngineRegistry
from plugrl.errors import CheckpointError, ConfigError
from plugrl.models import MODELS, register_model
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.plugins import load_plugins
from plugrl_engine_fsdp.backends import DdpEngine, Fsdp1Engine, Fsdp2Engine
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.section import GradScalerConfig
from plugrl_engine_fsdp.gradients import LocalGradients, factor_to_norm, global_norm
from plugrl_engine_fsdp.loss_scale import LossScale
from plugrl_engine_fsdp.optim import OptimizerSettings, Schedule, build_optimizer
from plugrl_engine_fsdp.precision import resolve_precision

OPTIM = {"lr": 1e-2, "clip_grad": 1.0}


class FastBf16(CpuPlatform):
    """A processor that says it is fast in bf16."""

    def preferred_dtype(self) -> str:
        return "bf16"


@pytest.fixture(autouse=True)
def one_process() -> Any:
    """A cpu platform and the test's model type."""
    with MODELS.temporary(), use_platform(CpuPlatform()):
        register_model("engine_test_blocks", bp.build)
        yield


def make_engine(optim: Any = OPTIM, config: Any = None, **model: Any) -> Any:
    """An initialised ddp engine over the small policy."""
    engine = DdpEngine({"model_type": "engine_test_blocks", **model}, config, optim, None)
    engine.initialize()
    return engine


def test_the_manifest_registers_both_backends_for_any_device() -> None:
    load_plugins()
    for model_type in ("language_model", "value_model"):
        assert EngineRegistry.get_engine_cls(model_type, "fsdp2") is Fsdp2Engine
        assert EngineRegistry.get_engine_cls(model_type, "fsdp") is Fsdp1Engine
        assert EngineRegistry.get_engine_cls(model_type, "ddp", device="any", vendor="other") is DdpEngine


def test_config_has_verls_defaults_and_refuses_unknown_keys() -> None:
    config = FsdpConfig()
    assert (config.fsdp_size, config.reshard_after_forward, config.param_offload) == (-1, True, False)
    assert FsdpConfig.model_validate({"dtype": "bfloat16"}).dtype == "bf16"
    wrap = FsdpConfig.model_validate({"wrap_policy": {"transformer_layer_cls_to_wrap": "Block"}}).wrap_policy
    assert wrap.transformer_layer_cls_to_wrap == ["Block"]
    for wrong in ({"offload": True}, {"dtype": "fp8"}, {"wrap_policy": {"min_num_params": -1}}):
        with pytest.raises(ValidationError):
            FsdpConfig.model_validate(wrong)


def test_precision_follows_section_then_model_then_platform() -> None:
    def compute(section: Any, model: str | None, platform: Any, trainable: bool = True) -> Any:
        return resolve_precision(FsdpConfig.model_validate(section), model, trainable, platform)

    slow, fast = CpuPlatform(), FastBf16()
    assert compute({"dtype": "fp32"}, "bf16", fast).compute == torch.float32
    assert compute({}, "bf16", slow).compute == torch.bfloat16
    assert compute({}, "auto", fast).compute == torch.bfloat16
    assert compute({}, None, fast, trainable=False).weights == torch.bfloat16
    mixed = compute({"mixed_precision": {"param_dtype": "bf16"}}, "fp32", slow)
    assert (mixed.weights, mixed.compute, mixed.reduce) == (torch.float32, torch.bfloat16, torch.float32)
    assert compute({}, "fp16", slow).needs_loss_scale and not mixed.needs_loss_scale
    units = {"wrappers": {"head": {"module_names": ["head"]}}, "mixed_precision_rules": {"head": "half"}}
    for half, scaled in (("fp16", True), ("bf16", False)):
        policy = {"param_dtype": half, "reduce_dtype": "fp32", "buffer_dtype": None}
        assert compute({**units, "mixed_precision_policies": {"half": policy}}, "fp32", slow).needs_loss_scale == scaled
        autocast = {"amp_autocast": {"enabled": True, "precision": half}}
        assert compute(autocast, "fp32", slow).needs_loss_scale == scaled
    with pytest.raises(ConfigError, match="fp16 needs a loss scale"):
        compute({"mixed_precision_policy": {"param_dtype": "fp16"}}, "fp32", slow)
    with pytest.raises(ConfigError, match="not in 'fp8'"):
        compute({}, "fp8", slow)


def test_schedule_warms_up_falls_and_resumes() -> None:
    def schedule(**options: Any) -> Schedule:
        settings = OptimizerSettings.from_config({"lr": 2.0, **options})
        return Schedule(build_optimizer([nn.Parameter(torch.zeros(1))], settings), settings)

    options = {"lr_warmup_steps": 2, "lr_scheduler_type": "cosine", "total_training_steps": 6, "min_lr_ratio": 0.1}
    one = schedule(**options)
    rates = [one.lr, *(one.step() for _ in range(6))]
    assert rates[:3] == [0.0, 1.0, 2.0]
    assert rates[6] == pytest.approx(0.2)
    other = schedule(**options)
    other.load_state_dict(one.state_dict())
    assert (other.steps, other.lr) == (6, one.lr)
    assert schedule(lr_warmup_steps_ratio=0.5, total_training_steps=4).step() == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="total_training_steps"):
        schedule(lr_scheduler_type="cosine")


def test_a_sequence_over_the_budget_and_training_without_optimizer_are_errors() -> None:
    rows = bp.make_rows(4)
    engine = make_engine(optim=None)
    with pytest.raises(ConfigError, match="budget"), engine.eval_mode():
        engine.infer_batch(rows, options=BatchOptions(max_tokens=3))
    with pytest.raises(ValueError, match="optimizer"):
        engine.forward_backward_batch(rows, bp.token_mean_loss)
    assert not any(parameter.requires_grad for parameter in engine.module.parameters())


def test_gradients_survive_train_mode_only_when_asked() -> None:
    engine, rows = make_engine(), bp.make_rows(4)
    for keep in (False, True):
        with engine.train_mode(zero_grad_on_exit=not keep):
            assert engine.module.training
            engine.forward_backward_batch(rows, bp.token_mean_loss)
        assert all((parameter.grad is not None) is keep for parameter in engine.module.parameters())
    with engine.eval_mode():
        assert not engine.module.training


def test_checkpoints_that_do_not_fit_are_named(tmp_path: Path) -> None:
    engine = make_engine()
    with engine.train_mode():
        engine.train_batch(bp.make_rows(4), bp.token_mean_loss)
    engine.save_checkpoint(str(tmp_path), global_step=1)
    for other, text in ((make_engine(width=8), "shape"), (make_engine(blocks=2), "unexpected")):
        with pytest.raises(CheckpointError, match=text):
            other.load_checkpoint(str(tmp_path))
    (tmp_path / "training_state/optimizer_state.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither optimizer_state.safetensors nor"):
        make_engine().load_checkpoint(str(tmp_path))
    only_model = make_engine()
    only_model.checkpoint_config = {"load_contents": ("model",)}
    only_model.load_checkpoint(str(tmp_path))
    only_model.checkpoint_config = {"load_contents": ("hf_model",)}
    with pytest.raises(CheckpointError, match="hf_model"):
        only_model.load_checkpoint(str(tmp_path))


def test_the_loss_scale_has_a_floor_and_says_when_it_stands_there(caplog: pytest.LogCaptureFixture) -> None:
    scale = LossScale(GradScalerConfig(init_scale=8.0, growth_interval=2, min_scale=0.5))
    seen = []
    for finite in [False] * 6 + [True] * 2:
        scale.update(finite)
        seen.append(scale.scale)
    assert seen == [4.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0]
    assert caplog.text.count("not finite at the smallest loss scale, 0.5") == 2
    scale.load_state_dict({**scale.state_dict(), "scale": 1e-30})
    assert scale.scale == 0.5, "as a checkpoint of a run without a floor may hold it"
    with pytest.raises(ValidationError, match="init_scale 0.5 is below min_scale 1"):
        GradScalerConfig(init_scale=0.5)


def test_a_clip_of_zero_clips_nothing() -> None:
    assert OptimizerSettings.from_config({"clip_grad": 0}).clip_grad == 0
    assert factor_to_norm(10.0, 0.0, 0.25) == 0.25 and factor_to_norm(10.0, 5.0, 0.25) == pytest.approx(0.125)
    with pytest.raises(ConfigError, match="clip_grad: -1 is no norm"):
        OptimizerSettings.from_config({"clip_grad": -1})


def test_the_norm_of_low_gradients_is_computed_in_fp32() -> None:
    half = torch.full((1000,), 4000.0, dtype=torch.float16)
    rows = [torch.randn(1000, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(9)]
    double = torch.ones(4, dtype=torch.float64)
    for tensors in ([half], rows, [*rows, half, double]):
        exact = torch.cat([tensor.double() for tensor in tensors]).norm().item()
        for gradients in (LocalGradients([], tensors), LocalGradients(tensors, [])):
            assert global_norm(gradients, None, torch.device("cpu")) == pytest.approx(exact, rel=1e-6)
