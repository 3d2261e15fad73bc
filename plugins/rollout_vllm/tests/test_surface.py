"""What the package uses of vLLM is in the recorded table, and the table is what the published wheel has."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import plugrl_rollout_vllm
from plugrl_rollout_openai.options import EngineOptions
from plugrl_rollout_openai.surface import Wheel, problems, record
from plugrl_rollout_vllm.options import VLLMOptions
from plugrl_rollout_vllm.plugin import plugin
from plugrl_rollout_vllm.uses import ARGUMENTS, CHECKED, USES

PACKAGE = Path(plugrl_rollout_vllm.__file__).parent


@pytest.mark.parametrize("version", CHECKED)
def test_a_checked_version_has_all_that_is_used(version) -> None:
    facts = json.loads(Path(__file__).with_name(f"vllm-{version}.json").read_text())
    assert facts.keys() == {use.target for use in USES} and problems(USES, facts) == []


@pytest.mark.parametrize("version", CHECKED)
def test_the_published_wheel_is_what_was_recorded(version) -> None:
    found = sorted(Path(os.environ.get("PLUGRL_WHEELS", "/nowhere")).glob(f"vllm-{version}-*.whl"))
    if not found:
        pytest.skip(f"PLUGRL_WHEELS names no folder with a wheel of vllm {version}")
    wheel = Wheel(found[0])
    facts = json.loads(Path(__file__).with_name(f"vllm-{version}.json").read_text())
    assert record(USES, wheel) == facts
    wheel.close()


def test_nothing_of_vllm_is_imported_that_is_not_in_the_table() -> None:
    targets = {use.target.split(".", 1)[0] + "." + use.target.split(".", 1)[1] for use in USES}
    known = {target.split(":")[0] + ":" + target.split(":")[1].split(".")[0] for target in targets}
    imported = {
        f"{node.module}:{alias.name}"
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm"
        for alias in node.names
    }
    assert imported and imported <= known
    assert len(set(ARGUMENTS)) == len(ARGUMENTS)


def test_the_manifest_and_the_options_are_light_and_refuse_unknown_keys() -> None:
    assert [entry.name for entry in plugin.rollouts] == ["vllm"]
    code = (
        "import sys, plugrl_rollout_vllm.plugin, plugrl_rollout_vllm.options;"
        "print([name for name in ('torch', 'vllm', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(ValueError, match="tensor_parallel"):
        VLLMOptions.model_validate({"tensor_parallel": 2})


def test_the_keys_stand_in_the_page() -> None:
    page = Path(__file__).parents[1].joinpath("README.md").read_text().partition("## Configuration keys")[2]
    written = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    shared = set(EngineOptions.model_fields)
    assert sorted(written) == sorted(VLLMOptions.model_fields.keys() - shared)
    assert all(f"`{key}`" in page for key in shared)
