"""Lets the tests of this folder import their helper modules by name. No test of this process may load the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugrl.testing.fork_server import shared_server
from plugrl.testing.ranks import RankPool, ranks

__all__ = ["ranks"]

sys.path.insert(0, str(Path(__file__).parent))
from patient_pool import PatientPool  # noqa: E402


@pytest.fixture(scope="session")
def collectives_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the ranks of :func:`python_pool` log."""
    return tmp_path_factory.mktemp("vccl")


@pytest.fixture(scope="session")
def python_pool(collectives_log: Path) -> Iterator[RankPool]:
    """Two ranks on the build that needs no compiler: vccl is the same on both builds."""
    pool = PatientPool(2, platform="vdev", env={"VDEV_BUILD": "python", "VDEV_LOG": str(collectives_log)},
                       server=shared_server("torch"))  # fmt: skip
    try:
        yield pool
    finally:
        pool.close()
