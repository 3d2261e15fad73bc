"""The kit on the device for tests, each level in processes of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plugrl.testing.fork_server import shared_server
from plugrl.testing.kit.conformance import Target, run_conformance, targets_of
from plugrl.testing.kit.results import Report
from plugrl.testing.ranks import ranks

__all__ = ["ranks"]

Run = Callable[..., Report]

# Helper modules are imported by name, here and in the ranks.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def vdev() -> Target:
    """The installed device for tests, without the settings of its own package that a mutant would not change."""
    pytest.importorskip("torch")
    pytest.importorskip("plugrl_platform_vdev", reason="the device for tests is not installed")
    (target,) = targets_of("vdev")
    return target


@pytest.fixture(scope="session")
def run(vdev: Target) -> Run:
    """Return a function that runs levels, or single checks of them, with variables of the device."""

    def run(*levels: str, only: tuple[str, ...] = (), **variables: str) -> Report:
        return run_conformance(vdev, levels, only=only, env=variables, server=shared_server("torch"))

    return run
