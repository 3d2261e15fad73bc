"""The manifest, the settings' weight, and the conformance kit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from plugrl.envs.config import EnvParams
from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.plugin import plugin


def test_manifest_declares_the_environment() -> None:
    assert [entry.name for entry in plugin.envs] == ["tabletop"]


def test_manifest_and_settings_import_nothing_heavy() -> None:
    code = (
        "import sys, plugrl_envs_tabletop.plugin, plugrl_envs_tabletop.config;"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_environment_needs_no_torch_to_be_built() -> None:
    code = "import sys, plugrl_envs_tabletop.env; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_the_readme_lists_every_key() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    table = text.split("## Configuration keys")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert listed == [name for name in TabletopConfig.model_fields if name not in EnvParams.model_fields]
