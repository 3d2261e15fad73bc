"""Lets the tests of this folder import their helper modules by name, and loads the plugins once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plugrl.plugins import load_plugins
from plugrl.testing.ranks import ranks

__all__ = ["ranks"]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def loaded_plugins() -> None:
    """Load before any test restores a registry."""
    load_plugins()
