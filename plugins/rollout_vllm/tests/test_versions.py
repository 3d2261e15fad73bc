"""Versions of an engine side by side: the interpreter of a node group chooses one, and plugins must be the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DRIVER = Path(__file__).with_name("versions_driver.py")


def distribution(packages: Path, name: str, version: str, entry_points: str = "") -> None:
    """Let a distribution be installed in a folder, as far as its metadata go."""
    info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def environment(folder: Path, engine: str, plugin: str = "") -> Path:
    """Make an environment with an engine beside the packages of this one, and return its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    distribution(packages, "vllm", engine)
    if plugin:
        entry = "[plugrl.plugins]\nrollout_vllm = plugrl_rollout_vllm.plugin:plugin\n"
        distribution(packages, "plugrl-rollout-vllm", plugin, entry)
    return folder / "bin" / "python"


def test_each_node_group_has_its_engine_and_all_have_the_drivers_plugins(tmp_path: Path) -> None:
    interpreters = [
        environment(tmp_path / "old", "0.33.0"),
        environment(tmp_path / "new", "0.34.0"),
        environment(tmp_path / "strange", "0.34.0", plugin="9.9.9"),
    ]
    done = subprocess.run(
        [sys.executable, str(DRIVER), *map(str, interpreters)],
        env={**os.environ, "PLUGRL_PLUGINS": "", "PLUGRL_CPU_DEVICES": "4"},
        capture_output=True, text=True, timeout=850,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    old, new, strange = json.loads(done.stdout.splitlines()[-1])
    assert old == ["0.33.0", str(tmp_path / "old")]
    assert new == ["0.34.0", str(tmp_path / "new")]
    assert strange[0] == "FingerprintMismatch"
    assert "has plugrl-rollout-vllm 9.9.9; the driver has 0.1.0" in strange[1]
