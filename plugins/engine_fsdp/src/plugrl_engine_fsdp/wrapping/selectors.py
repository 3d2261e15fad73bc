"""Finding modules by class, by path and by tag. One resolver serves every key that names modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from torch import nn

TAG = "_fsdp_wrap_name"
"""Attribute of a module that gives its role a name where its class does not."""


@dataclass(frozen=True)
class ModuleTree:
    """The modules of a policy by path; nothing of the policy is changed.

    modules: each module once, under its first path, in the order of definition; the root has the path ''.
    """

    root: nn.Module

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """Each module under its first path."""
        return dict(self.root.named_modules())

    @cached_property
    def paths(self) -> dict[int, tuple[str, ...]]:
        """``id(module)`` to every path that leads to it."""
        found: dict[int, tuple[str, ...]] = {}
        for path, module in self.root.named_modules(remove_duplicate=False):
            found[id(module)] = (*found.get(id(module), ()), path)
        return found

    @cached_property
    def class_names(self) -> list[str]:
        """Short names of the classes below the root, for messages."""
        return sorted({type(module).__name__ for path, module in self.modules.items() if path})

    def by_class(self, name: str) -> list[str]:
        """Paths of the modules whose class is called ``name``, short or qualified with its module; never the root."""
        return [path for path, module in self.modules.items() if path and is_called(type(module), name)]

    def by_path(self, pattern: str) -> list[str]:
        """Paths that ``pattern`` matches: a path, or a shell pattern in which ``*`` crosses dots; never the root.

        A module that several paths lead to is found by any of them, and given under its first.
        """
        found = []
        for path, module in self.modules.items():
            names = self.paths[id(module)]
            if path and any(name and (name == pattern or fnmatchcase(name, pattern)) for name in names):
                found.append(path)
        return found

    def by_tag(self, tag: str) -> list[str]:
        """Paths of the modules tagged ``tag``; never the root."""
        return [path for path, module in self.modules.items() if path and getattr(module, TAG, None) == tag]

    def find(self, selector: str, target: str) -> list[str]:
        """Paths that one target of a selector (``module_names``, ``module_classes``, ``wrap_names``) matches."""
        finders = {"module_names": self.by_path, "module_classes": self.by_class, "wrap_names": self.by_tag}
        return finders[selector](target)

    def candidates(self, selector: str) -> Iterable[str]:
        """What a target of ``selector`` could have been, for a message."""
        if selector == "module_classes":
            return self.class_names
        if selector == "wrap_names":
            return sorted({str(tag) for module in self.modules.values() if (tag := getattr(module, TAG, None))})
        return [path for path in self.modules if path]


def is_called(cls: type, name: str) -> bool:
    """Whether ``name`` is the class's short name, or the name qualified with its module."""
    return name in (cls.__name__, cls.__qualname__, f"{cls.__module__}.{cls.__qualname__}")


def is_container(module: nn.Module) -> bool:
    """Whether a module has no forward, so that nothing can be gathered before it runs (ModuleList, ModuleDict)."""
    return type(module).forward is nn.Module.forward


def is_below(path: str, ancestor: str) -> bool:
    """Whether ``path`` lies strictly below ``ancestor``."""
    return path != ancestor and (not ancestor or path.startswith(ancestor + "."))


def common_ancestor(paths: Iterable[str]) -> str:
    """The nearest path that all ``paths`` are or lie below; '' is the root."""
    parts = [path.split(".") for path in paths]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def nearest_above(path: str, units: Mapping[str, object]) -> str:
    """The innermost of ``units`` that ``path`` lies strictly below; '' is the root."""
    while path:
        path = path.rpartition(".")[0]
        if path in units:
            return path
    return ""
