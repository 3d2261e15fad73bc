"""The plugins of ``tests/packages``, really installed: into a folder that is on the path of child processes only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

PACKAGES = Path(__file__).parents[1] / "packages"
DEADLINE_S = 120


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of every test package, install them with one pip call and return the folder.

    The wheels are built here: pip would start two processes for each.
    """
    folder, wheels = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("wheels")
    packages = sorted(str(path.parent) for path in PACKAGES.glob("*/pyproject.toml"))
    built = [wheel for package in packages for wheel in WheelBuilder(package).build(directory=str(wheels))]
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, *built]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def child(installed: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Python code in a process that has the test packages, and these variables."""

    def run(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLUGRL_", "VERL_", "RLINF_"))}
        path = os.pathsep.join([str(installed), *filter(None, [clean.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**clean, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
        )

    return run


@pytest.fixture(scope="session")
def plugrl(child: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the command line with the test packages."""
    return lambda *arguments, **variables: child(
        "import sys; from plugrl.cli.app import main; main(sys.argv[1:])", *arguments, **variables
    )


@pytest.fixture(scope="session")
def answer(child: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """Return a function that runs code which prints one JSON value on its last line, and returns that value."""

    def run(code: str, **variables: str) -> Any:
        done = child(code, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
