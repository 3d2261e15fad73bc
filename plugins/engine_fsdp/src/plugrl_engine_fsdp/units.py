"""Which modules become sharding units, and the checks that must fail before training instead of inside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from plugrl.errors import ConfigError, nearest, one_of


def units_by_class(module: nn.Module, names: Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Submodules whose class is called one of ``names``, innermost first; ConfigError for a name without a module."""
    found = [(path, child) for path, child in module.named_modules() if path and type(child).__name__ in names]
    present = {type(child).__name__ for path, child in module.named_modules() if path}
    for name in names:
        if name not in present:
            hint = nearest(name, present)
            raise ConfigError(
                f"fsdp_config.wrap_policy.transformer_layer_cls_to_wrap: the model has no module of class {name!r}"
                + (f"; did you mean {hint!r}?" if hint else "")
                + f" It has: {one_of(present)}"
            )
    return found[::-1]


def units_by_size(module: nn.Module, min_num_params: int) -> list[tuple[str, nn.Module]]:
    """Submodules with at least ``min_num_params`` parameters outside their own units, innermost first.

    Modules that hold one part of a tied parameter stay in the enclosing unit, since a tie must not cross units.
    """
    tied = {id(parameter) for _, parameter in _ties(module)}
    units: list[tuple[str, nn.Module]] = []

    def visit(path: str, child: nn.Module) -> int:
        own = sum(parameter.numel() for parameter in child.parameters(recurse=False))
        own += sum(visit(f"{path}.{name}" if path else name, grandchild) for name, grandchild in child.named_children())
        holds_tie = any(id(parameter) in tied for parameter in child.parameters())
        if path and own >= min_num_params and not holds_tie and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            units.append((path, child))
            return 0
        return own

    visit("", module)
    return units


def _ties(module: nn.Module) -> list[tuple[list[str], nn.Parameter]]:
    """Parameters that the module holds under several names, with these names."""
    names: dict[int, list[str]] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter
    return [(paths, parameters[key]) for key, paths in names.items() if len(paths) > 1]


def _owner(name: str, units: Iterable[str]) -> str:
    """The innermost unit that holds the parameter ``name``; '' is the root."""
    return max((path for path in units if name.startswith(path + ".")), key=len, default="")


def check_ties(module: nn.Module, units: Sequence[tuple[str, nn.Module]]) -> None:
    """ConfigError when tied parameters lie in different units: sharding would silently untie them."""
    paths = [path for path, _ in units]
    for names, _ in _ties(module):
        owners = {_owner(name, paths) for name in names}
        if len(owners) > 1:
            raise ConfigError(
                "fsdp_config.wrap_policy: tied parameters lie in different units: "
                + ", ".join(f"{name} in {_owner(name, paths) or 'the root'}" for name in names)
                + ". Leave their modules out of the wrapped classes"
            )


def check_dtypes(module: nn.Module, units: Sequence[tuple[str, nn.Module]]) -> None:
    """ConfigError when one unit holds trainable parameters of several dtypes, which cannot be gathered together."""
    paths = [path for path, _ in units]
    seen: dict[str, dict[torch.dtype, str]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            seen.setdefault(_owner(name, paths), {}).setdefault(parameter.dtype, name)
    for path, dtypes in seen.items():
        if len(dtypes) > 1:
            listed = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
            raise ConfigError(f"the unit {path or 'of the root'!r} mixes trainable dtypes: {listed}")
