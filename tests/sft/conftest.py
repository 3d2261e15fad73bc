"""Supervised training: helper modules are imported by name, here and in the ranks."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from plugrl.testing.lerobot_dataset import write_lerobot_dataset
from plugrl.testing.ranks import ranks

__all__ = ["ranks"]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes without a video, 28 frames."""
    pytest.importorskip("pyarrow")
    return write_lerobot_dataset(tmp_path_factory.mktemp("demonstrations"), video=False)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
