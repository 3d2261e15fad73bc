"""The layers of the core: a module imports only from its own layer or from those below it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "metric", "environment", "provenance", "targets", "registration", "registry", "plugins", "config"),
    ("platforms", "engines", "models", "processors", "envs", "rollouts", "rewards"),
    ("runtime", "checkpoints", "algorithms", "tracking", "data"),
    ("workers",),
    ("runners",),
    ("acceptance",),
    ("cli", "testing", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def part_of(path: Path) -> str:
    """The first name below ``plugrl`` of a file."""
    relative = path.parts[path.parts.index("plugrl") + 1 :]
    return relative[0].removesuffix(".py")


def imported_parts(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and part of every import of the core that runs, those for type checkers left out."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(id(inner) for statement in node.body for inner in ast.walk(statement))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "plugrl" else [f"plugrl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found += [(node.lineno, name.split(".")[1]) for name in names if name.startswith("plugrl.")]
    return found


def test_every_part_of_the_core_has_a_layer(trees: dict[Path, ast.Module]) -> None:
    parts = {part_of(path) for path in trees if "core" in path.parts} - {"__init__"}
    assert parts <= LEVEL.keys(), f"Give these a layer: {sorted(parts - LEVEL.keys())}"


def test_layers_import_downwards_only(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        if "core" not in path.parts or part_of(path) == "__init__":
            continue
        level = LEVEL[part_of(path)]
        wrong += [
            f"{path}:{line} imports plugrl.{part}"
            for line, part in imported_parts(tree)
            if part in LEVEL and LEVEL[part] > level
        ]
    assert not wrong, "\n".join(wrong)


def declared_needs(trees: dict[Path, ast.Module], package: Path) -> set[str]:
    """What the entries in the manifest of a package say that they need: without it they are passed over."""
    tree = trees.get(package / "plugin.py", ast.Module([], []))
    keywords = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "needs"]
    return {node.value for value in keywords for node in ast.walk(value) if isinstance(node, ast.Constant)}


def installed_with(package: Path) -> set[str]:
    """The packages that come along with a package because its ``pyproject.toml`` asks for them."""
    project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text())["project"]
    names = (re.split(r"[^A-Za-z0-9-]", text)[0] for text in project["dependencies"])
    return {name.replace("-", "_") for name in names}


def test_the_core_imports_no_plugin_and_plugins_import_what_they_declare(trees: dict[Path, ast.Module]) -> None:
    """A vendor's engine derives from another package's, and its entry says so in ``needs``; a model asks for it."""
    wrong = []
    for path, tree in trees.items():
        source = path.parts.index("src") + 1
        package = Path(*path.parts[: source + 1])
        needs = declared_needs(trees, package) if "engines" in path.parts else set()
        allowed = {path.parts[source]} | needs | installed_with(package)
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            foreign = [n for n in names if n.startswith("plugrl_") and n.split(".")[0] not in allowed]
            wrong += [f"{path}:{node.lineno}: {name}" for name in foreign]
    assert not wrong, "\n".join(wrong)
