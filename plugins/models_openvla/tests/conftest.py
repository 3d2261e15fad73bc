"""Lets the tests of this folder import their helper modules by name, and loads the plugins once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from plugrl.plugins import load_plugins
from plugrl.testing.ranks import ranks

__all__ = ["ranks"]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def loaded_plugins() -> None:
    """Load before any test restores a registry, and leave the machine's other cores to others."""
    load_plugins()
    torch.set_num_threads(1)
