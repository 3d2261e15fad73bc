"""The core passes its own tests in an environment that has nothing but the core and what it requires."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_PARTS = ("cli", "config", "platforms", "plugins", "test_registry.py", "testing/test_kit_report.py")
_RUNNER = "core/tests/testing/test_kit_runner.py::test_every_end_of_a_check_is_its_result"
_LIGHT = [*(f"core/tests/{part}" for part in _PARTS), _RUNNER]
"""The tests of what must work before torch and Ray are there; most others of the core ask for them and skip."""

_TOOLS = ("pytest", "pytest-timeout", "hypothesis")


def required_by(names: tuple[str, ...]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions of these names and all that they require, without extras, as they are installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        distribution = importlib.metadata.distribution(name)
        if distribution.metadata["Name"] in found:
            continue
        found[distribution.metadata["Name"]] = distribution
        needs = map(Requirement, distribution.requires or ())
        wanted += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def link(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    """Put a distribution into another environment: links to what lies at the top of its files."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for name in names:
        (folder / name).symlink_to(Path(str(distribution.locate_file(name))))


def linked_environment(folder: Path) -> Path:
    """The core and the tools as they are installed here, without anything that they do not require."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in required_by(("plugrl", *_TOOLS)).values():
        link(distribution, packages)
    return folder / "bin" / "python"


def installed_environment(folder: Path, root: Path) -> Path:
    """The same, downloaded and installed."""
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin" / "python"
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, str(root / "core"), *_TOOLS], check=True, timeout=240)
    return python


@pytest.mark.parametrize("how", ["linked", pytest.param("installed", marks=pytest.mark.slow)])
def test_core_tests_pass_without_torch_ray_or_plugins(root: Path, tmp_path: Path, how: str) -> None:
    folder = tmp_path / "venv"
    python = linked_environment(folder) if how == "linked" else installed_environment(folder, root)
    names = "torch", "ray", "transformers", "numpy"
    absent = f"import importlib.util as u; print([n for n in {names} if u.find_spec(n)])"
    listed = subprocess.run([python, "-c", absent], capture_output=True, text=True, check=True, timeout=60)
    assert listed.stdout.strip() == "[]"
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *_LIGHT],
        cwd=root, env=dict(os.environ), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip  (without env it would get what readline sets: the width of a terminal that is not there)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
