"""Variables of a launcher that would configure training are refused, by name and value."""

from __future__ import annotations

import logging

import pytest

from plugrl.errors import ConfigError
from plugrl.runners.launcher_guard import check_launcher_variables

PLAIN = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "no",
    "ACCELERATE_USE_CPU": "True",
    "ACCELERATE_CPU_AFFINITY": "0",
    "OMP_NUM_THREADS": "1",
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
}
"""What a launch without a configuration file sets, and what torchrun sets."""


def test_plain_launchers_pass() -> None:
    check_launcher_variables({})
    check_launcher_variables(PLAIN)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("ACCELERATE_USE_FSDP", "true", "parallelism.dp_shard"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "0", "parallelism.dp_replicate"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1", "accelerator.gradient_accumulation.steps"),
        ("ACCELERATE_MIXED_PRECISION", "bf16", "accelerator.mixed_precision"),
        ("ACCELERATE_DYNAMO_BACKEND", "inductor", "a key of this configuration"),
        ("FSDP_STATE_DICT_TYPE", "FULL", "checkpoint_format"),
        ("PARALLELISM_CONFIG_DP_SHARD_SIZE", "4", "parallelism.dp_shard"),
    ],
)
def test_what_configures_training_is_refused_with_the_key_to_use(name: str, value: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_launcher_variables({**PLAIN, name: value})
    text = str(caught.value)
    assert f"{name}={value}: use {key}" in text and "accelerate launch" in text
    assert "OMP_NUM_THREADS" not in text and "LEROBOT_ALLOW_ACCELERATE_ENV=1" in text


@pytest.mark.parametrize("override", ["LEROBOT_ALLOW_ACCELERATE_ENV", "PLUGRL_ALLOW_ACCELERATE_ENV"])
def test_the_override_is_read_by_its_value(override: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    with caplog.at_level(logging.WARNING):
        check_launcher_variables({**given, override: "yes"})
    assert "ACCELERATE_USE_FSDP=true, FSDP_VERSION=2" in caplog.text
    for off in ("0", "false", "no", ""):
        with pytest.raises(ConfigError, match="FSDP_VERSION=2"):
            check_launcher_variables({**given, override: off})
    with pytest.raises(ConfigError, match=f'{override}="maybe" is neither on nor off'):
        check_launcher_variables({**given, override: "maybe"})
