"""The trainer's keys at the root and those of ``fsdp_config`` give one configuration; the engine objects alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugrl.config import load_config
from plugrl.config.show import dump_yaml
from plugrl.errors import ConfigError
from plugrl_engine_fsdp.backends import DdpEngine, Fsdp2Engine
from plugrl_engine_fsdp.config import FsdpConfig

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
AT_THE_ROOT = {
    "parallelism": {"dp_replicate": 2, "dp_shard": -1},
    "accelerator": {
        "mixed_precision": "fp16",
        "grad_scaler": {"init_scale": 16.0},
        "ddp": {"static_graph": True},
        "fsdp": {
            "strategy": "fsdp2",
            "wrap_modules": ["Qwen3DecoderLayer"],
            "reshard_after_forward": False,
            "cpu_offload": True,
            "ignored_modules": ".*embed_tokens",
            "mixed_precision_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
        },
    },
}
IN_THE_SECTION = {
    "parallelism": {"dp_replicate": 2, "dp_shard": -1},
    "dtype": "fp16",
    "grad_scaler": {"init_scale": 16.0},
    "ddp": {"static_graph": True},
    "wrap_policy": {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]},
    "reshard_after_forward": False,
    "cpu_offload": True,
    "ignored_modules": ".*embed_tokens",
    "mixed_precision_policy": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
}


def load(folder: Path, **sections: Any) -> Any:
    """The quickstart with these sections at its root."""
    values = yaml.safe_load(QUICKSTART.read_text())
    for name, keys in sections.items():
        values[name] = {**values.get(name, {}), **keys}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_config(path)


def test_both_spellings_give_one_configuration(tmp_path: Path) -> None:
    root = load(tmp_path, **AT_THE_ROOT)
    section = load(tmp_path, actor={"strategy": "fsdp2", "fsdp_config": IN_THE_SECTION})
    assert root.actor.fsdp_config == section.actor.fsdp_config == FsdpConfig.model_validate(IN_THE_SECTION)
    assert root.ref.fsdp_config.parallelism == root.actor.fsdp_config.parallelism
    (tmp_path / "shown.yaml").write_text(dump_yaml(root.model_dump(mode="json")))
    assert load_config(tmp_path / "shown.yaml") == root


@pytest.mark.parametrize(
    ("accelerator", "part"),
    [
        ({"mixed_precision": "tf32"}, "actor.fsdp_config.dtype"),
        ({"gradient_accumulation": {"steps": 0}}, "sft.gradient_accumulation_steps: must be at least 1"),
        ({"compile": {"enabled": True}}, "compiling is not implemented"),
        ({"fsdp": {"reduce_dtype": "bf16"}}, "actor.fsdp_config.reduce_dtype: unknown key"),
        ({"fsdp": {"mixed_precision_policy": {"reduce_dtype": "bf16"}}}, "param_dtype is needed beside reduce_dtype"),
        ({"fsdp": {"ignored_modules": "["}}, "is no regular expression"),
    ],
)
def test_a_wrong_key_of_the_trainer_is_named(tmp_path: Path, accelerator: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, accelerator=accelerator)
    assert part in str(caught.value)


def test_two_faults_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, accelerator={"mixed_precision": "tf32"}, parallelism={"dp_shard": 0})
    assert "fsdp_config.dtype" in str(caught.value) and "fsdp_config.parallelism.dp_shard" in str(caught.value)


class Checkpoint:
    """A `checkpoint` section that asks for shards."""

    format = "dcp"


@pytest.mark.parametrize(
    ("engine", "section", "checkpoint", "world", "parts"),
    [
        (Fsdp2Engine, {}, None, 4, []),
        (Fsdp2Engine, {}, Checkpoint(), 4, []),
        (Fsdp2Engine, {"parallelism": {"dp_shard": -1}}, Checkpoint(), 1, ["checkpoint", "dp_replicate=1, dp_shard=1"]),
        (DdpEngine, {}, Checkpoint(), 2, ["checkpoint", "dp_replicate=2, dp_shard=1"]),
        (Fsdp2Engine, {"cpu_offload": True, "param_offload": True}, None, 2, ["fsdp_config.cpu_offload: keeps"]),
        (Fsdp2Engine, {"cpu_offload": True}, None, 1, ["fsdp_config.cpu_offload: only a sharded model"]),
        (DdpEngine, {"parallelism": {"dp_shard": 2}}, None, 2, ["strategy ddp does not shard"]),
        (
            Fsdp2Engine,
            {"cpu_offload": True, "param_offload": True, "parallelism": {"dp_replicate": 3}},
            None,
            2,
            ["cpu_offload", "dp_replicate=3 x dp_shard=1"],
        ),
    ],
)
def test_the_engine_says_beforehand_what_it_cannot_do(
    engine: Any, section: dict[str, Any], checkpoint: Any, world: int, parts: list[str]
) -> None:
    found = list(engine.problems(section, {"lr": 1e-3}, checkpoint, world))
    assert len(found) == len(parts) or (found and parts), found
    for part in parts:
        assert any(part in line for line in found), found


def test_checking_a_configuration_needs_no_torch() -> None:
    code = (
        f"import sys; from plugrl.config import load_config; load_config({str(QUICKSTART)!r}, "
        "['parallelism.dp_shard=-1', 'accelerator.mixed_precision=bf16']); "
        "print(sorted({'torch', 'accelerate', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
