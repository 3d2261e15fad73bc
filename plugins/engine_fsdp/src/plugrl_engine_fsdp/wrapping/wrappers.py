"""From named wrappers to the boundaries they draw in a model: rules M1 to M12."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from plugrl.errors import nearest
from plugrl_engine_fsdp.config.mixed_precision import WrapMode, Wrapper
from plugrl_engine_fsdp.config.problems import Problem, WrapConfigError
from plugrl_engine_fsdp.wrapping.selectors import ModuleTree, common_ancestor, is_below, is_container

BATCH_NORM = nn.modules.batchnorm._BatchNorm
"""FSDP1 wraps these by itself and leaves their precision alone: their statistics need fp32."""


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A module that a wrapper makes a unit. group: whether nothing below it may be a unit of its own."""

    path: str
    wrapper: str
    target: str
    mode: WrapMode

    @property
    def group(self) -> bool:
        """Whether the whole subtree is this one unit."""
        return self.mode != "individual"


@dataclass(frozen=True)
class _Match:
    path: str
    target: str


def resolve_boundaries(
    tree: ModuleTree, wrappers: tuple[Wrapper, ...], *, use_orig_params: bool, fsdp1: bool
) -> dict[str, Boundary]:
    """Return the boundaries of all wrappers by path, in the order of definition.

    Raises WrapConfigError with the problems of all wrappers (M1 to M11), then with those between boundaries (M12).
    """
    boundaries: dict[str, Boundary] = {}
    problems: list[Problem] = []
    for wrapper in wrappers:
        found, wrong = _boundaries_of(tree, wrapper, use_orig_params, fsdp1)
        problems += wrong
        for boundary in found:
            other = boundaries.get(boundary.path)
            if other is None:
                boundaries[boundary.path] = boundary
            elif other.wrapper != wrapper.name:
                text = f"Multiple wrapper definitions match module {boundary.path!r}: {other.wrapper}, {wrapper.name}"
                problems.append(Problem("M10", f"wrappers.{wrapper.name}", text))
    WrapConfigError.raise_if(problems)
    WrapConfigError.raise_if(_nested_in_groups(boundaries))
    return {path: boundaries[path] for path in tree.modules if path in boundaries}


def _boundaries_of(
    tree: ModuleTree, wrapper: Wrapper, use_orig_params: bool, fsdp1: bool
) -> tuple[list[Boundary], list[Problem]]:
    """The boundaries of one wrapper and what is wrong with them: selection, scope, groups, then each boundary."""
    where = f"wrappers.{wrapper.name}"
    matches, problems = _select(tree, wrapper)
    if problems:
        return [], problems
    selected = [match.path for match in matches]
    if wrapper.mode == "combined":
        scope = common_ancestor(selected)
        if not scope:
            text = (
                f"Wrapper {wrapper.name!r}: group resolves to the model root; select a non-root execution boundary. "
                f"Selected: {', '.join(selected)}"
            )
            return [], [Problem("M3", where, text)]
        targets = ", ".join(dict.fromkeys(match.target for match in matches))
        matches = [_Match(scope, targets)]
    boundaries = [
        Boundary(path=match.path, wrapper=wrapper.name, target=match.target, mode=wrapper.mode) for match in matches
    ]
    for boundary in boundaries:
        if boundary.group:
            for rule, text in _group_problems(tree, boundary, selected, use_orig_params, fsdp1):
                problems.append(Problem(rule, where, f"Wrapper {wrapper.name!r}: {text}"))
    for boundary in boundaries:
        module = tree.modules[boundary.path]
        if is_container(module):
            text = f"Module {boundary.path!r} has no forward execution boundary: it is a {type(module).__name__}"
            problems.append(Problem("M9", where, text))
        if fsdp1 and not boundary.group and isinstance(module, BATCH_NORM):
            text = f"Module {boundary.path!r} is subject to PyTorch's BatchNorm exclusion: FSDP1 wraps it by itself"
            problems.append(Problem("M11", where, text))
    return boundaries, problems


def _select(tree: ModuleTree, wrapper: Wrapper) -> tuple[list[_Match], list[Problem]]:
    """The modules that a wrapper's targets match, each once, in the order of definition (M1, M2)."""
    found: dict[str, str] = {}
    problems = []
    where = f"wrappers.{wrapper.name}.{wrapper.selector}"
    for target in wrapper.targets:
        paths = tree.find(wrapper.selector, target)
        if not paths:
            text = f"Wrapper {wrapper.name!r}: selector {target!r} matched no non-root modules"
            hint = nearest(target, tree.candidates(wrapper.selector))
            problems.append(Problem("M1", where, text + (f"; did you mean {hint!r}?" if hint else "")))
        for path in paths:
            found.setdefault(path, target)
    for path in found:
        several = tree.paths[id(tree.modules[path])]
        if len(several) > 1:
            text = f"Shared module has multiple wrapper paths: {list(several)}"
            problems.append(Problem("M2", where, text))
    return [_Match(path, found[path]) for path in tree.modules if path in found], problems


def _group_problems(
    tree: ModuleTree, boundary: Boundary, selected: list[str], use_orig_params: bool, fsdp1: bool
) -> Iterator[tuple[str, str]]:
    """What keeps the subtree at a boundary from being one unit (M4 to M8); code and text."""
    module = tree.modules[boundary.path]
    outside = [name for name in _states(module, boundary.path) if not any(is_below(name, path) for path in selected)]
    if outside:
        yield "M4", f"grouping would include unselected states at {boundary.path!r}: {', '.join(outside[:5])}"
    norms = [path for path, child in tree.modules.items() if _is_within(path, boundary.path) and _is_norm(child)]
    if fsdp1 and norms:
        yield "M5", f"BatchNorm exclusion would split the requested group at {boundary.path!r}: {', '.join(norms[:5])}"
    parameters = dict(module.named_parameters())
    if not parameters:
        yield "M6", f"group has no parameters: {boundary.path!r}"
    dtypes = {parameter.dtype: name for name, parameter in reversed(parameters.items())}
    if fsdp1 and len(dtypes) > 1:
        yield "M7", f"the group {boundary.path!r} needs a uniform original parameter dtype; {_listed(dtypes)}"
    if fsdp1 and not use_orig_params and len({parameter.requires_grad for parameter in parameters.values()}) > 1:
        yield "M8", f"the group {boundary.path!r} has mixed requires_grad, which needs use_orig_params=true"


def _nested_in_groups(boundaries: dict[str, Boundary]) -> Iterator[Problem]:
    """M12: no boundary may lie below a grouped one, also not one of the same wrapper."""
    for group in boundaries.values():
        inner = [path for path in boundaries if is_below(path, group.path)]
        if group.group and inner:
            text = (
                f"Grouped wrapper {group.wrapper!r} contains explicitly selected inner wrappers below "
                f"{group.path!r}: {', '.join(f'{path} ({boundaries[path].wrapper})' for path in inner)}"
            )
            yield Problem("M12", f"wrappers.{group.wrapper}", text)


def _states(module: nn.Module, path: str) -> list[str]:
    """Full names of all parameters and buffers of a module."""
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in module.named_buffers(remove_duplicate=False)]
    return [f"{path}.{name}" for name in names]


def _is_within(path: str, boundary: str) -> bool:
    return path == boundary or is_below(path, boundary)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORM)


def _listed(dtypes: dict[torch.dtype, str]) -> str:
    return ", ".join(f"{name} is {str(dtype).removeprefix('torch.')}" for dtype, name in dtypes.items())
