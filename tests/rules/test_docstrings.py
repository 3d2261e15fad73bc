"""Every public module, class and function says what it is."""

from __future__ import annotations

import ast
from pathlib import Path


def undocumented(node: ast.AST, prefix: str) -> list[str]:
    """Names of public definitions without a docstring, nested classes included, nested functions not."""
    missing = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or child.name.startswith("_"):
            continue
        overload = any("overload" in ast.unparse(decorator) for decorator in child.decorator_list)
        setter = any(".setter" in ast.unparse(decorator) for decorator in child.decorator_list)
        if ast.get_docstring(child) is None and not overload and not setter:
            missing.append(f"{prefix}:{child.lineno} {child.name}")
        if isinstance(child, ast.ClassDef):
            missing += undocumented(child, prefix)
    return missing


def test_everything_public_is_documented(trees: dict[Path, ast.Module]) -> None:
    missing = []
    for path, tree in trees.items():
        if ast.get_docstring(tree) is None and path.read_text().strip():
            missing.append(f"{path}: the module")
        missing += undocumented(tree, str(path))
    assert not missing, "\n".join(missing)


def test_no_work_is_left_in_the_source(trees: dict[Path, ast.Module]) -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
    found = [
        f"{path}:{number}"
        for path in trees
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(mark in line for mark in marks)
    ]
    assert not found, "\n".join(found)
