"""The wrap plan: which modules are units, why, and in which precision each computes.

Planning is pure: it reads module tree and configuration, changes neither, and gives the same plan twice. A parameter
belongs to its nearest unit; a unit has its own policy or the global one, never that of the unit around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from plugrl.errors import ConfigError
from plugrl_engine_fsdp.config.mixed_precision import UnitPrecision, UnitPrecisionConfig, named_units, parse_precision
from plugrl_engine_fsdp.config.problems import Problem, WrapConfigError
from plugrl_engine_fsdp.wrapping.automatic import (
    Automatic,
    BasePolicy,
    automatic_units,
    declares_unknown_classes_only,
)
from plugrl_engine_fsdp.wrapping.ignored import ignored_paths
from plugrl_engine_fsdp.wrapping.ownership import Ownership, check_owned, separate_ties
from plugrl_engine_fsdp.wrapping.selectors import ModuleTree, is_below, nearest_above
from plugrl_engine_fsdp.wrapping.wrappers import BATCH_NORM, Boundary, resolve_boundaries

ROOT = ""
"""The path of the root unit."""

Mode = Literal["individual", "subtree", "combined", "automatic", "root"]


@dataclass(frozen=True, kw_only=True)
class WrapUnit:
    """One unit. path: of its module. parameters: elements it owns. policy: name of its policy, None for the global.

    wrapper: the named wrapper that asked for it. chosen: whether any rule of the user did.
    """

    path: str
    class_name: str
    parameters: int
    precision: UnitPrecision
    policy: str | None
    reason: str
    mode: Mode
    wrapper: str | None = None
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class WrapPlan:
    """The units in the order of definition, the root first. notices: what was done; warnings: what may go wrong."""

    units: tuple[WrapUnit, ...]
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __getitem__(self, path: str) -> WrapUnit:
        return next(unit for unit in self.units if unit.path == path)

    @property
    def root(self) -> WrapUnit:
        """The unit of everything that no other unit owns."""
        return self.units[0]

    @property
    def inner(self) -> tuple[WrapUnit, ...]:
        """All units but the root."""
        return self.units[1:]

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the inner units."""
        return tuple(unit.path for unit in self.inner)

    def modules(self, policy: nn.Module) -> list[tuple[WrapUnit, nn.Module]]:
        """The inner units with their modules in ``policy``, innermost first, as they must be wrapped."""
        return [(unit, policy.get_submodule(unit.path)) for unit in reversed(self.inner)]

    def parent(self, unit: WrapUnit) -> WrapUnit:
        """The unit around an inner unit."""
        return self.around(unit.path)

    def around(self, path: str) -> WrapUnit:
        """The unit that a module below it at ``path`` runs in."""
        return self[nearest_above(path, {unit.path: unit for unit in self.units})]


def resolve_wrap_plan(
    policy: nn.Module,
    config: Any,
    *,
    strategy: str | None = None,
    precision: UnitPrecision | None = None,
    base_policy: BasePolicy | None = None,
    shards: bool = True,
) -> WrapPlan:
    """Decide the units of ``policy`` under ``fsdp_config``, an FsdpConfig or a mapping with its keys.

    strategy: ``fsdp`` or ``fsdp2``; None takes that of ``config``, else ``fsdp``. precision: the global one; None takes
    the block ``mixed_precision``. base_policy: replaces the automatic units, as torch's wrap policies do. shards:
    whether parameters are sharded, so that a model without units is a mistake.

    Raises:
        WrapConfigError: a rule M1 to M16 is broken; the error has all problems that can be seen together.
        ConfigError: an unknown class, a tie across units, or nothing that says what to wrap.
    """
    read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    strategy = strategy or read("strategy") or "fsdp"
    named = named_units(config)
    tree = ModuleTree(policy)
    use_orig_params = read("use_orig_params") is not False
    fsdp1 = strategy == "fsdp"
    planner = _Planner(tree, fsdp1, use_orig_params, precision or _global_precision(read("mixed_precision")), named)
    planner.ignored = ignored_paths(tree, read("ignored_modules"), read("ignored_module_classes"))
    planner.boundaries = resolve_boundaries(tree, named.wrappers, use_orig_params=use_orig_params, fsdp1=fsdp1)
    if read("disable") is not True and base_policy is None:
        planner.automatic = _automatic(planner, read("wrap_policy") or {})
        _require_units(planner, shards)
    return planner.plan(base_policy)


def _global_precision(block: Any) -> UnitPrecision:
    if block is None:
        return UnitPrecision()
    return block.precision if hasattr(block, "precision") else parse_precision(block)


class _Planner:
    """What planning needs to know, and the units as far as they are decided."""

    def __init__(
        self, tree: ModuleTree, fsdp1: bool, use_orig_params: bool, precision: UnitPrecision, named: UnitPrecisionConfig
    ) -> None:
        self.tree, self.fsdp1, self.use_orig_params, self.named = tree, fsdp1, use_orig_params, named
        self.precision = precision
        self.ignored: frozenset[str] = frozenset()
        self.boundaries: dict[str, Boundary] = {}
        self.automatic = Automatic({})
        self.reasons: dict[str, str] = {}
        self._unreached: list[str] = []

    def plan(self, base_policy: BasePolicy | None) -> WrapPlan:
        """Walk, then check and describe."""
        self._visit(ROOT, self.tree.root, base_policy)
        if self._unreached:
            text = f"Explicit wrappers {sorted(self._unreached)} are below a non-recursing policy"
            raise WrapConfigError([Problem("M13", "wrappers", text)])
        explicit = frozenset(self.boundaries)
        chosen = explicit | self.automatic.chosen
        paths = [ROOT, *(path for path in self.tree.modules if path in self.reasons)]
        paths, notices = separate_ties(self.tree, paths, explicit=explicit, chosen=chosen)
        owned = Ownership(self.tree, paths, self.ignored)
        check_owned(owned, fsdp1=self.fsdp1, use_orig_params=self.use_orig_params)
        if self.automatic.replaced:
            replaced = [path for path in self.automatic.replaced if path not in paths]
            if replaced:
                notices.insert(0, f"put aside by the user's own rules: {_shortened(replaced)}")
        units = tuple(self._unit(path, owned) for path in paths)
        plan = WrapPlan(units=units, notices=tuple(notices), ignored=tuple(sorted(self.ignored)))
        return WrapPlan(**{**vars(plan), "warnings": tuple(_output_warnings(plan, self.fsdp1))})

    def _visit(self, path: str, module: nn.Module, base: BasePolicy | None) -> int:
        """Decide the units at and below ``path``; returns the parameters that are left to the unit around it."""
        boundary = self.boundaries.get(path)
        left = sum(parameter.numel() for parameter in module.parameters())
        if path in self.ignored:
            self._unreached += [other for other in self.boundaries if other == path or is_below(other, path)]
            return 0
        grouped = boundary is not None and boundary.group
        if grouped or (base is not None and not base(module=module, recurse=True, nonwrapped_numel=left)):
            self._unreached += [other for other in self.boundaries if is_below(other, path)]
        else:
            for name, child in module.named_children():
                inner = f"{path}.{name}" if path else name
                if inner in self.tree.modules:  # a shared module is visited under its first path
                    left -= self._visit(inner, child, base)
        if path == ROOT:
            return 0
        reason = self._reason(path, module, base, left)
        if reason is None:
            return 0
        self.reasons[path] = reason
        return left

    def _reason(self, path: str, module: nn.Module, base: BasePolicy | None, left: int) -> str | None:
        """Why the module is a unit; None when it is not."""
        boundary = self.boundaries.get(path)
        if boundary is not None:
            return f"wrapper {boundary.wrapper}: {boundary.target}"
        if self.fsdp1 and isinstance(module, BATCH_NORM) and self.precision.in_use:
            return "FSDP1 leaves the precision of BatchNorm alone"
        if base is not None:
            return "base policy" if base(module=module, recurse=False, nonwrapped_numel=left) else None
        return self.automatic.reasons.get(path)

    def _unit(self, path: str, owned: Ownership) -> WrapUnit:
        module = self.tree.modules[path]
        boundary = self.boundaries.get(path)
        policy, precision = None, self.precision
        if boundary is not None:
            bound = self.named.policy_of(boundary.wrapper)
            policy, precision = bound if bound is not None else (None, self.precision)
        elif path and self.fsdp1 and isinstance(module, BATCH_NORM) and self.precision.in_use:
            precision = UnitPrecision()
        return WrapUnit(
            path=path,
            class_name=type(module).__name__,
            parameters=owned.elements(path),
            precision=precision,
            policy=policy,
            reason=self.reasons.get(path, "everything else"),
            mode="root" if path == ROOT else boundary.mode if boundary is not None else "automatic",
            wrapper=None if boundary is None else boundary.wrapper,
            chosen=boundary is not None or path in self.automatic.chosen,
        )


def _automatic(planner: _Planner, wrap_policy: Any) -> Automatic:
    """The automatic units; adapters apart where FSDP1 cannot have them in one unit with their frozen base."""
    parameters = list(planner.tree.root.parameters())
    kinds = {(parameter.requires_grad, parameter.dtype) for parameter in parameters}
    mixed_grad = len({requires for requires, _ in kinds}) > 1
    mixed_dtype = len({dtype for _, dtype in kinds}) > 1
    return automatic_units(
        planner.tree,
        wrap_policy,
        separate_adapters=planner.fsdp1 and mixed_grad and (mixed_dtype or not planner.use_orig_params),
        ignored=planner.ignored,
    )


def _require_units(planner: _Planner, shards: bool) -> None:
    """ConfigError when nothing says what to wrap: the root alone would work, and save nothing."""
    if not shards or planner.boundaries or planner.automatic.said or planner.automatic.chosen:
        return
    found = declares_unknown_classes_only(planner.tree)
    name = type(planner.tree.root).__name__
    raise ConfigError(
        f"fsdp_config.wrap_policy: {found or f'{name} declares no units to shard'}; name them in "
        "transformer_layer_cls_to_wrap or set min_num_params, or set fsdp_config.disable=true for one unit. "
        f"It has: {', '.join(planner.tree.class_names)}"
    )


_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def _output_warnings(plan: WrapPlan, fsdp1: bool) -> list[str]:
    """Warn of units that compute in another dtype than the unit around them, whose outputs nothing casts back.

    FSDP2 casts them, see its layout. One warning for each wrapper.
    """
    texts: dict[str, list[str]] = {}
    for unit in plan.inner if fsdp1 else ():
        inside, around = unit.precision.param_dtype, plan.parent(unit).precision.param_dtype
        if unit.wrapper is None or inside == around or _BYTES.get(inside or "", 0) <= _BYTES.get(around or "", 9):
            continue
        if unit.precision.cast_forward_inputs:
            text = f"returns {inside} to a unit that computes in {around}, and FSDP1 casts no outputs: a layer of that "
            text += "unit that takes them without casting fails"
        else:
            text = f"computes in {inside} on inputs that are not cast (cast_forward_inputs=false): it must cast them "
            text += f"itself when they come in {around}"
        texts.setdefault(f"wrapper {unit.wrapper!r} {text}", []).append(unit.path)
    return [f"{text} ({_shortened(paths)})" for text, paths in texts.items()]


def _shortened(paths: list[str], limit: int = 4) -> str:
    more = f" and {len(paths) - limit} more" if len(paths) > limit else ""
    return ", ".join(paths[:limit]) + more
