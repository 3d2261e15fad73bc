"""What probes find out without torch and without a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plugrl.platforms.probe import Available, Unavailable
from plugrl.platforms.probe_facts import device_files, is_installed, torch_build, visible

VERSION = """
from typing import Optional
__version__ = '2.13.0+acme'
acme: Optional[str] = '7.1'
other: Optional[str] = None
computed = str(1)
"""


@pytest.fixture
def another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch on the path of child processes that cannot be imported and has a version file."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('a probe imported torch')")
    (tmp_path / "torch" / "version.py").write_text(VERSION)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "torch" / "version.py"


def asked(*names: str) -> list[str]:
    """What a child process reads from the build of torch."""
    code = "import sys; from plugrl.platforms.probe_facts import torch_build as b; print(*map(b, sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_build_of_torch_is_read_without_importing_it(another_torch: Path) -> None:
    assert asked("acme", "other", "computed", "nothing", "__version__") == ["7.1", *["None"] * 3, "2.13.0+acme"]
    another_torch.write_text("not python (")
    assert asked("acme") == ["None"]


def test_a_build_for_the_processor_names_no_sdk() -> None:
    assert is_installed("json") and not is_installed("no_such_module_of_a_vendor")
    assert torch_build("no_such_sdk") is None


def test_device_files_are_counted_once(tmp_path: Path) -> None:
    for name in ("acme0", "acme1", "acme_ctl"):
        (tmp_path / name).touch()
    assert device_files(f"{tmp_path}/acme[0-9]*") == 2
    assert device_files(f"{tmp_path}/acme[0-9]*", f"{tmp_path}/acme*") == 3
    assert device_files(f"{tmp_path}/none*") == 0


@pytest.mark.parametrize(
    ("count", "mask", "answer"),
    [
        (4, None, Available(4, "seen")),
        (None, None, Available(0, "seen")),
        (0, None, Unavailable("no device found")),
        (0, "0,1", Unavailable("no device found")),
        (4, "2, 5", Available(2, "seen, ACME_MASK=2,5")),
        (None, "GPU-abc", Available(1, "seen, ACME_MASK=GPU-abc")),
        (4, "", Unavailable("no device visible (ACME_MASK is '')")),
        (4, "-1", Unavailable("no device visible (ACME_MASK is '-1')")),
        (4, "0,-1,2", Available(1, "seen, ACME_MASK=0")),
    ],
)
def test_the_mask_decides_what_is_visible(
    count: int | None, mask: str | None, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACME_MASK", raising=False)
    if mask is not None:
        monkeypatch.setenv("ACME_MASK", mask)
    assert visible(count, "ACME_MASK", "seen") == answer
