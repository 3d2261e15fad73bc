"""The core passes its own tests in an environment that has nothing but the core."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LIGHT = [f"core/tests/{part}" for part in ("cli", "config", "platforms", "plugins", "test_registry.py", "testing")]
"""The tests of what must work before torch and Ray are there; most others of the core ask for them and skip."""


def test_core_tests_pass_without_torch_ray_or_plugins(root: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    python = environment / "bin" / "python"
    packages = [str(root / "core"), "pytest", "pytest-timeout", "hypothesis"]
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True, timeout=240
    )
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *_LIGHT],
        cwd=root, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    absent = "import importlib.util as u; print([n for n in ('torch', 'ray', 'transformers') if u.find_spec(n)])"
    listed = subprocess.run([python, "-c", absent], capture_output=True, text=True, check=True, timeout=60)
    assert listed.stdout.strip() == "[]"
