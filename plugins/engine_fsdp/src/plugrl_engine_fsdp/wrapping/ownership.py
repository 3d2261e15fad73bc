"""Which unit owns a parameter, and what the parameters of one unit must have in common: ties, dtypes, requires_grad."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from torch import nn

from plugrl.errors import ConfigError
from plugrl_engine_fsdp.config.problems import Problem, WrapConfigError
from plugrl_engine_fsdp.wrapping.selectors import ModuleTree, is_below


class Ownership:
    """The parameters of each unit. A parameter belongs to the nearest unit above it; ignored ones belong to none."""

    def __init__(self, tree: ModuleTree, units: Sequence[str], ignored: Collection[str] = ()) -> None:
        self._tree, self._ignored = tree, ignored
        self._units = {id(tree.modules[path]): path for path in units}

    def owner(self, name: str) -> str:
        """The path of the unit that owns the parameter ``name``; '' is the root."""
        path = name
        while path:
            path = path.rpartition(".")[0]
            unit = self._units.get(id(self._tree.root.get_submodule(path)))
            if unit is not None:
                return unit
        return ""

    @cached_property
    def parameters(self) -> dict[str, dict[str, nn.Parameter]]:
        """Path of a unit to its parameters by name, each once."""
        owned: dict[str, dict[str, nn.Parameter]] = {path: {} for path in self._units.values()}
        for name, parameter in self._tree.root.named_parameters():
            if not any(is_below(name, path) for path in self._ignored):
                owned[self.owner(name)][name] = parameter
        return owned

    def elements(self, path: str) -> int:
        """Number of elements that the unit at ``path`` owns."""
        return sum(parameter.numel() for parameter in self.parameters[path].values())


def separate_ties(
    tree: ModuleTree, units: list[str], *, explicit: Collection[str], chosen: Collection[str]
) -> tuple[list[str], list[str]]:
    """Give every tied parameter one owner: automatic units that share one are merged into the unit around them.

    Returns the units that are left and a notice for each merge. A unit that the user chose is never dropped.

    Raises:
        WrapConfigError: (M14) a tie crosses a named wrapper's boundary.
        ConfigError: a tie crosses a unit that ``wrap_policy`` names.
    """
    units, notices = list(units), []
    for names in ties(tree.root):
        while len(owners := _owners(tree, units, names)) > 1:
            droppable = [path for path in set(owners.values()) if path and path not in chosen]
            if not droppable:
                raise _crossing(owners, explicit)
            innermost = max(droppable, key=lambda path: path.count("."))
            units.remove(innermost)
            notices.append(f"{innermost} is no unit of its own: it shares a parameter ({', '.join(names)})")
            if len(set(owners.values())) == 1:
                break
    return units, notices


def _owners(tree: ModuleTree, units: list[str], names: list[str]) -> dict[str, str]:
    """Name to owner, or one name alone when all have the same owner."""
    ownership = Ownership(tree, units)
    owners = {name: ownership.owner(name) for name in names}
    return owners if len(set(owners.values())) > 1 else {names[0]: owners[names[0]]}


def _crossing(owners: dict[str, str], explicit: Collection[str]) -> ConfigError:
    listed = ", ".join(f"{name} in {owner or 'the root'}" for name, owner in owners.items())
    if any(owner in explicit for owner in owners.values()):
        text = f"Shared parameter crosses an explicit wrapper boundary: {listed}"
        return WrapConfigError([Problem("M14", "wrappers", text)])
    return ConfigError(
        f"fsdp_config.wrap_policy: tied parameters lie in different units: {listed}. "
        "Leave their modules out of the wrapped classes"
    )


def ties(module: nn.Module) -> list[list[str]]:
    """The names of each parameter that the module holds under several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def check_owned(owned: Ownership, *, fsdp1: bool, use_orig_params: bool) -> None:
    """Raise WrapConfigError for units whose parameters cannot be flattened or gathered together (M15, M16)."""
    WrapConfigError.raise_if(_owned_problems(owned, fsdp1, use_orig_params))


def _owned_problems(owned: Ownership, fsdp1: bool, use_orig_params: bool) -> Iterator[Problem]:
    for path, parameters in owned.parameters.items():
        name = path or "(root)"
        # FSDP2 gathers frozen parameters of another dtype beside the trainable ones.
        counted = {key: value for key, value in parameters.items() if fsdp1 or value.requires_grad}
        dtypes = {value.dtype: key for key, value in reversed(counted.items())}
        if len(dtypes) > 1:
            listed = ", ".join(f"{key} is {str(dtype).removeprefix('torch.')}" for dtype, key in dtypes.items())
            text = f"FSDP wrapper {name!r} requires uniform original parameter dtype: {listed}"
            yield Problem("M15", "wrap_policy", text)
        grads = {value.requires_grad: key for key, value in reversed(parameters.items())}
        if fsdp1 and not use_orig_params and len(grads) > 1:
            text = (
                f"FSDP wrapper {name!r}: mixed requires_grad needs use_orig_params=true "
                f"({grads[True]} is trained, {grads[False]} is not)"
            )
            yield Problem("M16", "use_orig_params", text)
