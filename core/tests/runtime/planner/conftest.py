"""The solved examples, random cases, and an independent enumeration to compare with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    """A module that stands beside this file; benchmarks load the same two."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cases() -> ModuleType:
    """``random_case`` and ``random_plan``."""
    return load("random_cases")


@pytest.fixture(scope="session")
def brute_force() -> Any:
    """The class ``BruteForce``."""
    return load("brute_force").BruteForce


@pytest.fixture(scope="session")
def examples() -> dict[str, dict[str, Any]]:
    """The solved examples by their id."""
    return {case["id"]: case for case in json.loads((HERE / "planner_examples.json").read_text())["cases"]}
