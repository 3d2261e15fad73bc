"""The packages of the vendors, and processes in which a machine with their hardware is imitated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plugrl.testing.fork_server import shared_server

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = ROOT / "tests" / "packages"
DEADLINE_S = 200


@dataclass(frozen=True)
class Vendor:
    """A package, the answers from which its layout was made, and its parsed manifest module's text."""

    folder: Path
    answers: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the platform."""
        return self.answers["platform_name"]

    @property
    def package(self) -> str:
        """The import name."""
        return f"plugrl_platform_{self.name}"

    @property
    def source(self) -> Path:
        """The folder of the modules."""
        return self.folder / "src" / self.package


def _vendors() -> list[Vendor]:
    found = []
    for project in sorted((ROOT / "plugins").glob("platform_*/pyproject.toml")):
        tools = tomllib.loads(project.read_text())["tool"]
        if "plugrl-template" in tools:
            found.append(Vendor(project.parent, tools["plugrl-template"]))
    return found


VENDORS = _vendors()


@pytest.fixture(params=VENDORS, ids=lambda vendor: vendor.name)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    """Each package that is laid out by the template."""
    return request.param


@pytest.fixture(scope="session")
def vendors() -> list[Vendor]:
    """All of them."""
    return VENDORS


@pytest.fixture(scope="session")
def answer() -> Callable[..., Any]:
    """A function that runs code where stand-ins are importable; the code prints one JSON value on its last line.

    With ``torch`` its process begins with torch imported, the real one.
    """

    def run(code: str, *stand_ins: str, argument: Any = None, torch: bool = False, **variables: str) -> Any:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLUGRL_", "VERL_", "RLINF_", "USE_FLAGCX"))}
        folders = [str(STAND_INS / "sdk_common"), *(str(STAND_INS / name) for name in stand_ins)]
        programs = [folder + "/bin" for folder in folders if os.path.isdir(folder + "/bin")]
        clean["STAND_INS"] = str(STAND_INS)
        clean["PATH"] = os.pathsep.join([*programs, clean["PATH"]])
        clean["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [clean.get("PYTHONPATH")])])
        arguments, env = ["-c", code, json.dumps(argument)], {**clean, **variables}
        if torch:
            done = shared_server("torch", "torch.distributed.fsdp").run(*arguments, env=env, timeout=DEADLINE_S)
        else:
            command = [sys.executable, *arguments]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
