"""The page on wrap plans: its commands print what it says, its lists of rules are those that the code has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from plugrl.cli.commands import app

PAGE = "docs/wrap-plan.md"


def run(*words: str) -> Any:
    """What a command line gives."""
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.fixture
def at_root(docs: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the repository as the working folder, as the page's commands want it."""
    monkeypatch.chdir(docs.root)
    return docs.root


def test_commands_print_what_the_page_shows(docs: Any, at_root: Path) -> None:
    commands = [command for command in docs.commands() if str(command.page.path).endswith(PAGE)]
    outputs = []
    for command in commands:
        done = run(*command.words[1:])
        assert done.exit_code == 0, done.output
        outputs.append(done.stdout)
    assert len(outputs) == 3
    shown = docs[PAGE].blocks("text")[0]
    assert shown.strip() in outputs[0]
    assert "bf16, reduce fp32" in outputs[1] and "bf16" not in outputs[0]


def test_the_configuration_of_the_page_is_planned_as_it_says(docs: Any, at_root: Path, tmp_path: Path) -> None:
    section = yaml.safe_load(docs[PAGE].blocks("yaml")[0])["actor"]
    values = yaml.safe_load((at_root / "examples/quickstart.yaml").read_text())
    values["actor"] |= section
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    plan = run("config", "wrap-plan", str(path), "--ranks", "2")
    assert plan.exit_code == 0, plan.output
    assert re.search(r"model\.model\.layers\.\{0\.\.1\}\.mlp \(subtree\) +Qwen3MLP .* wrapper mlps", plan.stdout)
    assert re.search(r"model\.model\.norm +Qwen3RMSNorm .*fp32_preserve_inputs: fp32", plan.stdout)
    assert "wrapper 'norms' computes in fp32 on inputs that are not cast" in plan.stderr


def test_problems_are_reported_as_the_page_shows(docs: Any, at_root: Path, tmp_path: Path) -> None:
    from plugrl.config import load_config
    from plugrl.errors import ConfigError

    section = yaml.safe_load(docs[PAGE].blocks("yaml")[0])["actor"]
    values = yaml.safe_load((at_root / "examples/quickstart.yaml").read_text())
    values["actor"] |= section
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    overrides = ["actor.fsdp_config.mixed_precision_rules.norms=fp23", "actor.fsdp_config.wrappers.mlps.wrap_mode=tree"]
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert f"error: {caught.value}".startswith(docs[PAGE].blocks("text")[1].strip())


def test_every_rule_is_listed(docs: Any) -> None:
    listed = [row[0] for title, rows in docs[PAGE].tables() if title == "Rules" for row in rows[1:]]
    assert listed == [f"C{n}" for n in range(1, 20)] + [f"M{n}" for n in range(1, 17)]
