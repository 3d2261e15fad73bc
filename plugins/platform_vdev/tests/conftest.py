"""Lets the tests of this folder import their helper modules by name. No test of this process may load the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugrl.testing.fork_server import shared_server
from plugrl.testing.ranks import RankPool, ranks

__all__ = ["ranks"]

sys.path.insert(0, str(Path(__file__).parent))


class PatientPool(RankPool):
    """A pool whose calls may take long: the first ones import much, and other work may share the processors."""

    def run(self, *args: Any, timeout_s: float = 240.0, **kwargs: Any) -> list[Any]:
        """As the parent's, with a later deadline."""
        return super().run(*args, timeout_s=timeout_s, **kwargs)


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
