"""Shared by the rules of the repository: where the sources are, and their syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "src" / "plugrl"


def python_files(*folders: Path) -> list[Path]:
    """All Python files below the folders, sorted."""
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def plugin_sources() -> list[Path]:
    """The source folder of every plugin."""
    return sorted((ROOT / "plugins").glob("*/src/*"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def trees() -> dict[Path, ast.Module]:
    """The syntax tree of every source file of the core and the plugins."""
    return {path: ast.parse(path.read_text(), str(path)) for path in python_files(CORE, *plugin_sources())}
