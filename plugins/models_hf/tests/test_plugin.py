"""The manifest and the configuration."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plugrl_models_hf.config import CausalLMConfig, CharacterTokenizerConfig, resolve_config
from plugrl_models_hf.plugin import plugin


def test_manifest_declares_the_two_model_types() -> None:
    assert [(entry.model_type, entry.category) for entry in plugin.models] == [
        ("causal_lm", "language"),
        ("causal_lm_value", "value"),
    ]


def test_manifest_and_schema_import_nothing_heavy() -> None:
    code = (
        "import sys, plugrl_models_hf.plugin, plugrl_models_hf.config;"
        "print([name for name in ('torch', 'transformers', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_configuration_takes_mappings_and_omegaconf(model_section) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    section = model_section()
    assert resolve_config(omegaconf.OmegaConf.create(section)) == resolve_config(section)
    assert isinstance(resolve_config(section).tokenizer, CharacterTokenizerConfig)
    assert resolve_config(resolve_config(section)) == resolve_config(section)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "not neither"),
        ({"path": "x", "config": {"model_type": "llama"}}, "not both"),
        ({"config": {"hidden_size": 8}, "tokenizer": "x"}, "config needs model_type"),
        ({"config": {"model_type": "llama"}}, "tokenizer is needed"),
        ({"path": "x", "hiden": 1}, "hiden"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(section, message) -> None:
    with pytest.raises(ValueError, match=message):
        CausalLMConfig.model_validate(section)
