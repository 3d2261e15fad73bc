"""The core really calls what it asks vendors to write."""

from __future__ import annotations

import ast
from pathlib import Path

SEAMS = {"check_smi_command": "platforms/generic.py"}
"""Members that are helpers for a vendor's own class, each with where the platforms themselves use it."""


def members(tree: ast.Module) -> list[str]:
    """Names that ``PlatformBase`` asks a vendor for."""
    (contract,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "PlatformBase")
    return [node.name for node in contract.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def attributes(tree: ast.Module) -> set[str]:
    """Every attribute that a module reads."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_every_member_of_a_platform_has_a_caller(trees: dict[Path, ast.Module]) -> None:
    """In the core outside the platforms themselves, in what selects and probes them, or in a plugin of another kind."""
    by_name = {path.as_posix(): tree for path, tree in trees.items()}
    (contract,) = (tree for name, tree in by_name.items() if name.endswith("plugrl/platforms/base.py"))
    implementations = ("platforms/base.py", "platforms/generic.py", "platforms/cpu.py")
    callers = {
        name: attributes(tree)
        for name, tree in by_name.items()
        if not name.endswith(implementations) and "/plugins/platform_" not in name
    }
    called = set().union(*callers.values())
    found = members(contract)
    assert len(found) > 30
    idle = [name for name in found if name not in called and name not in SEAMS]
    assert not idle, f"PlatformBase asks for what nobody calls: {', '.join(idle)}"
    for name, where in SEAMS.items():
        (seam,) = (tree for path, tree in by_name.items() if path.endswith(where))
        assert name in attributes(seam), f"{where} no longer uses {name}"
