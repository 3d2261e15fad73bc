"""Units that no named wrapper asked for: the user's classes and tags, else the model's own and what is usual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from plugrl.errors import ConfigError, nearest, one_of
from plugrl_engine_fsdp.wrapping.selectors import ModuleTree, is_container

BasePolicy = Callable[..., bool]
"""``(module, recurse, nonwrapped_numel) -> bool`` as torch's wrap policies: whether to look below, or to wrap."""

_CLASS_KEYS = ("transformer_layer_cls_to_wrap", "module_classes_to_wrap")
_USUAL = {
    "vision tower": ("vision_tower", "vision_backbone", "vision_model", "visual"),
    "projector": ("projector", "multi_modal_projector", "mm_projector"),
    "value head": ("value_head",),
    "Q head": ("q_head", "q_heads"),
}
"""Attribute names that the roles commonly have in published models."""


@dataclass(frozen=True)
class Automatic:
    """Paths of the units with the reason for each.

    chosen: those that the user's own rules name. replaced: units of the model that such a rule put aside.
    said: whether user or model said anything, so that not everything lies in the root by accident.
    """

    reasons: Mapping[str, str]
    chosen: frozenset[str] = frozenset()
    replaced: tuple[str, ...] = ()
    said: bool = True


def automatic_units(
    tree: ModuleTree, wrap_policy: Any, *, separate_adapters: bool, ignored: frozenset[str]
) -> Automatic:
    """Return the units by class, tag, declaration or size; the size rule leaves out modules that hold a tied parameter.

    ``wrap_policy`` is the section of that name or a mapping; null and empty values count as not set.

    Raises:
        ConfigError: a class that the model has not, a container without forward, or two rules that exclude each other.
    """
    read = wrap_policy.get if isinstance(wrap_policy, Mapping) else lambda key: getattr(wrap_policy, key, None)
    custom = _custom(tree, read)
    size = read("min_num_params") or 0
    if size and read("transformer_layer_cls_to_wrap"):
        raise ConfigError(
            "fsdp_config.wrap_policy: transformer_layer_cls_to_wrap and min_num_params exclude each other"
        )
    sized = {path: f"at least {size:,} parameters" for path in units_by_size(tree, size)} if size else {}
    declared = _declared(tree)
    usual = _usual(tree)
    if custom or size:
        reasons = {**sized, **custom}
        replaced = tuple(path for path in {**declared, **usual} if path not in reasons and path not in ignored)
        found = Automatic(reasons, frozenset(custom), replaced)
    else:
        found = Automatic({**usual, **declared}, said=bool(declared))
    adapters = _adapters(tree) if separate_adapters else {}
    reasons = {
        path: found.reasons.get(path) or adapters[path]
        for path, module in tree.modules.items()
        if path in found.reasons or path in adapters
        if path not in ignored and _has_parameters(module)
    }
    return Automatic(reasons, found.chosen & reasons.keys(), found.replaced, found.said)


def _custom(tree: ModuleTree, read: Callable[[str], Any]) -> dict[str, str]:
    """Units by ``wrap_policy``'s lists. A tag that no module has is allowed: roles may be missing in a model."""
    found: dict[str, str] = {}
    for key in _CLASS_KEYS:
        for name in _names(read(key), key):
            paths = tree.by_class(name)
            if not paths:
                raise ConfigError(_unknown_class(tree, name, key))
            for path in paths:
                _refuse_container(tree, path, name, key)
                found.setdefault(path, f"wrap_policy.{key}: {name}")
    for tag in _names(read("no_split_names"), "no_split_names"):
        for path in tree.by_tag(tag):
            found.setdefault(path, f"wrap_policy.no_split_names: {tag}")
    return found


def _names(value: Any, key: str) -> list[str]:
    """The entries of a list of names; one text is a list of one, null is none."""
    names = [value] if isinstance(value, str) else list(value or ())
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"fsdp_config.wrap_policy.{key}: {name!r} is no name")
    return names


def _unknown_class(tree: ModuleTree, name: str, key: str) -> str:
    hint = nearest(name, tree.class_names)
    return (
        f"fsdp_config.wrap_policy.{key}: the model has no module of class {name!r}"
        + (f"; did you mean {hint!r}?" if hint else ".")
        + f" It has: {one_of(tree.class_names)}"
    )


def _refuse_container(tree: ModuleTree, path: str, name: str, key: str) -> None:
    if is_container(tree.modules[path]):
        raise ConfigError(
            f"fsdp_config.wrap_policy.{key}: {name} ({path}) has no forward, so nothing gathers it before it runs; "
            "name the classes it holds"
        )


def _declared(tree: ModuleTree) -> dict[str, str]:
    """Units that the model declares for itself. Classes that this variant of the model lacks are skipped."""
    found: dict[str, str] = {}
    for owner, names in _declarations(tree.root):
        for name in names:
            for path in tree.by_class(name):
                if not is_container(tree.modules[path]):
                    found.setdefault(path, f"declared by {owner}: {name}")
    for tag in _listed(getattr(tree.root, "_no_split_names", None)):
        for path in tree.by_tag(tag):
            found.setdefault(path, f"declared by {type(tree.root).__name__}: tag {tag}")
    return found


def _declarations(root: Any) -> Iterable[tuple[str, list[str]]]:
    """Class names with who declares them: the policy, else the models it is made of."""
    wrap_units = getattr(root, "wrap_units", None)
    own = list(wrap_units()) if callable(wrap_units) else []
    for attribute in ("_fsdp_wrap_modules", "_no_split_modules"):
        own = own or _listed(getattr(root, attribute, None))
    if own:
        return [(type(root).__name__, own)]
    parts = (getattr(root, attribute, None) for attribute in ("language_model", "visual"))
    found = ((part, getattr(part, "_no_split_modules", None)) for part in parts)
    return [(type(part).__name__, _listed(names)) for part, names in found if names]


def declares_unknown_classes_only(tree: ModuleTree) -> str | None:
    """A message when the model declares classes and has none of them; None when it declares nothing or has some."""
    for owner, names in _declarations(tree.root):
        if names and not any(tree.by_class(name) for name in names):
            hint = nearest(names[0], tree.class_names)
            return f"{owner} declares {', '.join(names)}, of which the model has none" + (
                f"; did it mean {hint}?" if hint else ""
            )
    return None


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else sorted(value) if isinstance(value, set) else list(value or ())


def _usual(tree: ModuleTree) -> dict[str, str]:
    """The outermost modules with a name that says their role."""
    found: dict[str, str] = {}
    for path, module in tree.modules.items():
        name = path.rpartition(".")[2]
        for role, names in _USUAL.items():
            nested = any(path.startswith(outer + ".") for outer in found)
            if name in names and not nested and not is_container(module):
                found[path] = f"usual for a {role}"
    return found


def _adapters(tree: ModuleTree) -> dict[str, str]:
    """Trainable leaves of a model whose other parameters are frozen: FSDP1 cannot keep both kinds in one unit."""
    found = {}
    for path, module in tree.modules.items():
        weight = getattr(module, "weight", None)
        leaf = path and not any(True for _ in module.children())
        trained = isinstance(weight, nn.Parameter) and weight.requires_grad
        if leaf and trained and getattr(module, "_to_lora", True) is not False:
            found[path] = "trainable leaf of a frozen model"
    return found


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def units_by_size(tree: ModuleTree, min_num_params: int) -> list[str]:
    """Paths of submodules with at least ``min_num_params`` parameters outside their own units.

    Modules that hold one part of a tied parameter stay in the enclosing unit, since a tie must not cross units.
    """
    names: dict[int, int] = {}
    for _, parameter in tree.root.named_parameters(remove_duplicate=False):
        names[id(parameter)] = names.get(id(parameter), 0) + 1
    tied = {key for key, count in names.items() if count > 1}
    units: list[str] = []

    def visit(path: str, module: nn.Module) -> int:
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        own += sum(visit(f"{path}.{name}" if path else name, child) for name, child in module.named_children())
        holds_tie = any(id(parameter) in tied for parameter in module.parameters())
        if path and own >= min_num_params and not holds_tie and not is_container(module):
            units.append(path)
            return 0
        return own

    visit("", tree.root)
    return units
