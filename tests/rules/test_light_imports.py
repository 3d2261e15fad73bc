"""What must start fast imports nothing heavy."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "ray", "transformers", "numpy")
REPORT = "import sys; print(','.join(name for name in {heavy!r} if name in sys.modules))"

SCRIPTS = {
    "import plugrl": "import plugrl",
    "all manifests": "from plugrl.plugins import load_plugins; assert load_plugins().records",
    "plugins list": "from plugrl.cli.app import run; assert run(['plugins', 'list', '--all']) == 0",
    "every registry": "from plugrl.plugins import load_plugins; from plugrl.registry import registries; "
    "load_plugins(); assert [registry.describe() for registry in registries().values()]",
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_imports_neither_torch_nor_ray_nor_transformers(what: str) -> None:
    script = f"{SCRIPTS[what]}; {REPORT.format(heavy=HEAVY)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1:] in ([""], []) or done.stdout.endswith("\n\n"), done.stdout


STARTS = {"import plugrl": (["-c", "import plugrl"], 0.15), "list": (["-m", "plugrl", "plugins", "list"], 0.5)}


@pytest.mark.parametrize(("arguments", "limit"), STARTS.values(), ids=STARTS)
def test_start_is_quick(arguments: list[str], limit: float) -> None:
    """CPU seconds of the best of five, since other processes only ever make it slower."""
    best = min(_cpu_seconds(arguments) for _ in range(5))
    assert best < limit, f"{' '.join(arguments)} took {best:.2f} s of CPU time"


def _cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60, cwd=Path.home())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
