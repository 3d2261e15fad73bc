"""The code on the pages does what the pages say: each block is run as a reader would run it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 100


def run(arguments: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder on its path, without variables of PlugRL but those given."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLUGRL_", "VERL_", "RLINF_"))}
    path = os.pathsep.join([str(folder), *filter(None, [clean.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**clean, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def block_with(page: Any, language: str, part: str) -> str:
    """The one block of a page that holds a text."""
    found = [text for text in page.blocks(language) if part in text]
    assert len(found) == 1, f"{page.path}: {len(found)} blocks of {language} with {part!r}"
    return found[0]


def test_python_blocks_compile(docs: Any) -> None:
    found = docs.blocks("python")
    assert found
    for page, text in found:
        ast.parse(text, str(page.path))


def test_the_first_plugin_works(docs: Any, tmp_path: Path) -> None:
    """Built and installed from the README's two blocks, it passes the check and a run may name its reward."""
    page = docs["README.md"]
    source, project = block_with(page, "python", "RewardEntry"), block_with(page, "toml", "my-plugin")
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    assert tomllib.loads(project)["project"]["entry-points"] == {"plugrl.plugins": {"my_plugin": "my_plugin:plugin"}}
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "my_plugin.py").write_text(source)
    (tmp_path / "source" / "pyproject.toml").write_text(project)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    target = tmp_path / "installed"
    done = run(["-m", "pip", "install", *options, "--target", str(target), str(tmp_path / "source")], tmp_path)
    assert done.returncode == 0, done.stderr
    check = run(["-m", "plugrl", "plugins", "check", "my_plugin"], target)
    assert check.returncode == 0, check.stdout + check.stderr
    example = str(docs.root / "examples" / "quickstart.yaml")
    check = run(["-m", "plugrl", "config", "check", "--keys-only", example, "reward.name=short"], target)
    assert check.returncode == 0, check.stdout + check.stderr
    script = "from plugrl.plugins import load_plugins as l; l(); from plugrl.rewards import get_reward as g; "
    called = run(["-c", f"{script} print(g('short')('19', '19', {{}}))"], target)
    assert called.stdout.strip() == "{'score': 0.98, 'acc': 1.0}", called.stderr


def test_the_extension_module_works(docs: Any, tmp_path: Path) -> None:
    (tmp_path / "my_extension.py").write_text(block_with(docs["docs/plugins.md"], "python", "register_model"))
    example = str(docs.root / "examples" / "quickstart.yaml")
    variables = {"RLINF_EXT_MODULE": "my_extension"}
    check = run(
        ["-m", "plugrl", "config", "check", "--keys-only", example, "reward.name=letters"], tmp_path, **variables
    )
    assert check.returncode == 0, check.stdout + check.stderr
    listed = run(["-m", "plugrl", "plugins", "doctor", "--json"], tmp_path, **variables)
    assert '"my_policy"' in listed.stdout and '"letters"' in listed.stdout, listed.stderr


def test_the_manifest_of_the_manual_is_sound(docs: Any) -> None:
    namespace: dict[str, Any] = {}
    exec(block_with(docs["docs/plugins.md"], "python", "EngineEntry"), namespace)
    assert namespace["plugin"].problems() == []
    declared = block_with(docs["docs/plugins.md"], "toml", "engine_acme")
    assert tomllib.loads(declared)["project"]["entry-points"]["plugrl.plugins"] == {
        namespace["plugin"].name: "plugrl_engine_acme.plugin:plugin"
    }


def test_the_hook_of_the_manual_is_one(docs: Any, tmp_path: Path) -> None:
    (tmp_path / "doc_hooks.py").write_text(block_with(docs["docs/plugins.md"], "python", "hookimpl"))
    script = "import doc_hooks; from plugrl.plugins.hooks import verify; verify(doc_hooks)"
    done = run(["-c", script], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_algorithms_of_the_manual_work(docs: Any) -> None:
    import torch

    from plugrl.algorithms import advantages, get_advantage, get_policy_loss, losses

    with advantages.temporary(), losses.temporary():
        for text in docs["docs/algorithms.md"].blocks("python"):
            exec(text, {})
        mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
        found, _ = get_advantage("sign")(torch.tensor([[0.0, 1.0, 9.0], [0.0, 0.0, 0.0]]), mask, threshold=0.5)
        assert found.tolist() == [[1.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
        zeros = torch.zeros(2, 3)
        loss, metrics = get_policy_loss("unclipped")(zeros, zeros, found, mask)
        assert loss.item() == pytest.approx(-1 / 3) and metrics == {}


def test_the_simulator_of_the_manual_works(docs: Any) -> None:
    import torch

    from plugrl.envs.registry import ENVS

    names: dict[str, Any] = {"__name__": "walk"}
    with ENVS.temporary():
        exec(block_with(docs["docs/environments.md"], "python", "class Walk"), names)
        env = ENVS.get("walk")(names["WalkParams"](num_envs=2, goal=2.5))
        env.reset(seed=[1, 1])
        result = env.chunk_step(torch.tensor([[[1.0], [1.0], [1.0]], [[0.0], [0.0], [0.0]]]))
    assert result.terminations.tolist() == [[False, True, False], [False] * 3] and len(result.episodes) == 1


def test_the_session_of_the_manual_names_what_exists(docs: Any) -> None:
    """Names and keywords of the example; starting Ray for it is what the tests of the runtime do."""
    import inspect

    namespace: dict[str, Any] = {}
    exec(block_with(docs["docs/runtime.md"], "python", "WorkerGroup"), namespace)
    group = namespace["WorkerGroup"]
    inspect.signature(group).bind(None, "module:Class", name="echo", devices=(0, 1))
    assert callable(group.wait_ready) and callable(group.execute)
