"""``plugrl plugins``: light, and the same answer by the quick path and by typer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from plugrl.cli import plugins_list
from plugrl.plugins import loader

SCRIPT = """
import json, sys
from plugrl.cli.app import run
code = run(["plugins", "list"])
names = ("torch", "ray", "transformers", "numpy", "pydantic", "typer", "rich")
print(json.dumps([code, [name for name in names if name in sys.modules]]))
"""


def test_list_imports_nothing_large():
    environment = {**os.environ, "PLUGRL_PLUGINS": ""}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


@pytest.mark.parametrize("arguments", [["plugins", "list", "--help"], ["plugins", "doctor"], ["train", "x"], []])
def test_every_other_command_line_is_left_to_typer(arguments):
    assert plugins_list.answer_quickly(arguments) is None


def test_list_shows_state_and_reason_and_hides_the_disabled_ones_unless_asked(bench, monkeypatch, capsys):
    bench.reward("good", "score")
    bench.plugin("bad", before="raise OSError('bad ABI')")
    bench.plugin("denied")
    monkeypatch.setattr(loader, "discover", lambda: bench.found)
    monkeypatch.setenv("PLUGRL_PLUGINS", "-denied")
    assert plugins_list.answer(show_all=False, as_json=True) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["plugins"]}
    assert [rows[name]["state"] for name in ("good", "bad", "denied")] == ["active", "failed", "disabled"]
    assert rows["good"]["provides"] == {"reward": ["score"]} and rows["bad"]["error"] == "OSError"
