"""The manifest and the options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plugrl_rollout_hf.options import HFRolloutOptions
from plugrl_rollout_hf.plugin import plugin


def test_manifest_declares_the_backend() -> None:
    assert [entry.name for entry in plugin.rollouts] == ["hf"]


def test_manifest_and_schema_import_nothing_heavy() -> None:
    code = (
        "import sys, plugrl_rollout_hf.plugin, plugrl_rollout_hf.options;"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="compact"):
        HFRolloutOptions.model_validate({"compact": 1})
