"""Making packages from the template in this process, and running commands where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DEADLINE_S = 240


def clean_environment(*folders: Path, **variables: str) -> dict[str, str]:
    """The environment without variables of PlugRL but those given, with folders on the path."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLUGRL_", "VERL_", "RLINF_"))}
    path = os.pathsep.join([*map(str, folders), *filter(None, [clean.get("PYTHONPATH")])])
    return {**clean, "PYTHONPATH": path, **variables}


def pip_install(folder: Path, target: Path) -> None:
    """Install a package into a folder, from nothing but its source."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the defaults, made by the command."""
    from plugrl.cli.plugins_new import generate

    return generate("platform", {"vendor": "acme"}, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, acme: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs Python where that package is installed."""
    target = tmp_path_factory.mktemp("installed")
    pip_install(acme, target)

    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=acme,
            env=clean_environment(target, **variables),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    return call
