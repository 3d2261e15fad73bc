"""A newcomer follows ``docs/write_a_platform.md`` from nothing to a passing kit: every command of the page is run."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cookiecutter")

PAGE = "docs/write_a_platform.md"
DEADLINE_S = 480
AN_AFTERNOON_S = 240
"""Seconds for what every vendor does: make, install, list, check, the package's tests, three training steps."""

EXTRA = ("--probe-undeclared", "explain", "grep")
"""Words in commands of the page that only look."""

EMPTY = "CAPABILITIES: tuple[str, ...] = ()"
PIP = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]


class Newcomer:
    """Types the commands of the page, in a folder that has nothing but the examples."""

    def __init__(self, page: Any, root: Path, folder: Path) -> None:
        self.sections = dict(part.split("\n", 1) for part in re.split(r"^## ", page.text, flags=re.MULTILINE)[1:])
        self.before = page.text.partition("\n## ")[0]
        self.page = page
        self.folder = folder
        self.installed = folder / "installed"
        (folder / "examples").symlink_to(root / "examples")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLUGRL_", "VERL_", "RLINF_", "VDEV_"))}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
        self.seconds: dict[str, float] = {}
        self.environment = {**clean, "PYTHONPATH": str(self.installed), "PATH": programs}

    def follow(self, title: str) -> str:
        """Run the commands of one section in order and return all that they print."""
        return "\n".join(self.type(line) for line in _commands(self.sections[title]))

    def type(self, line: str) -> str:
        """Run one command. What is installed here already is not installed again, the package itself is, as a copy."""
        started = time.monotonic()
        try:
            words = shlex.split(line)
            return self.install(words[2:]) if words[:2] == ["pip", "install"] else self.run(line)
        finally:
            self.seconds[line] = self.seconds.get(line, 0.0) + time.monotonic() - started

    def run(self, line: str) -> str:
        """Run one command, and fail if it does."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, words: list[str]) -> str:
        """Install the package of this folder, or see that the named distributions are there."""
        if words[:1] != ["-e"]:
            return " ".join(importlib.metadata.version(word.partition("[")[0]) for word in words)
        command = [sys.executable, "-m", "pip", "install", *PIP, "--upgrade", "--target", str(self.installed), words[1]]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def declare(self) -> None:
        """Make the edit of the page's Python block, and install again."""
        (block,) = self.page.blocks("python")
        path = self.folder / "platform_acme/src/plugrl_platform_acme/plugin.py"
        text = path.read_text()
        assert EMPTY in text
        text = text.replace(EMPTY, block.strip())
        imported = re.search(r"`(from plugrl\.platforms\.capabilities import \w+)`", self.page.text)
        assert imported is not None
        path.write_text(text.replace("from plugrl.plugins import", f"{imported[1]}\nfrom plugrl.plugins import", 1))
        self.install(["-e", "./platform_acme"])


def _commands(text: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture
def newcomer(docs: Any, tmp_path: Path) -> Newcomer:
    """At the beginning of the page, with everything installed that it asks for first."""
    someone = Newcomer(docs[PAGE], docs.root, tmp_path)
    for line in _commands(someone.before):
        someone.type(line)
    return someone


@pytest.mark.slow
def test_the_package_is_made_installed_listed_and_passes_without_a_device(newcomer: Newcomer) -> None:
    made = newcomer.follow("1. Make the package")
    assert "platform_acme is made" in made and "plugrl plugins check platform_acme --level L0" in made
    seen = newcomer.follow("2. See yourself")
    assert re.search(r"platform_acme +0\.1\.0 +1 +active +1 platform, 10 engines", seen), seen
    assert "acme conforms to L0" in seen and " passed" in seen and "TODO(acme)" in seen, seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_page_ends_in_a_device_that_passes_the_kit_and_trains(newcomer: Newcomer) -> None:
    newcomer.follow("1. Make the package")
    newcomer.follow("2. See yourself")
    first, *_, explain = _commands(newcomer.sections["3. Fill it in"])
    assert "works undeclared" in newcomer.type(first)
    newcomer.declare()
    assert "plugrl_platform_acme.engines.fsdp:AcmeFsdp2Engine" in newcomer.type(explain)
    passed = newcomer.follow("4. Pass the kit")
    assert "acme conforms to L0-L5" in passed
    assert "| `rl.grpo` |" in (newcomer.folder / "matrix.md").read_text()
    trained = newcomer.follow("5. Train")
    assert "3/3" in trained
    needed = {line: seconds for line, seconds in newcomer.seconds.items() if not any(word in line for word in EXTRA)}
    table = "\n".join(f"{seconds:6.1f} s  {line}" for line, seconds in newcomer.seconds.items())
    print(f"{table}\n{sum(needed.values()):6.1f} s without those that only look")
    assert sum(needed.values()) < AN_AFTERNOON_S, table
