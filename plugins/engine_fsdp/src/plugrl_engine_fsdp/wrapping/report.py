"""A wrap plan made from a configuration, as a table to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.engines.wrap_plan import WrapPlanTable
from plugrl.models.factory import get_model_skeleton
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import backend_problems
from plugrl_engine_fsdp.config.problems import WrapConfigError
from plugrl_engine_fsdp.precision import adapter_precision, resolve_precision, unit_precision
from plugrl_engine_fsdp.wrapping.plan import WrapPlan, WrapUnit, resolve_wrap_plan

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


def planned_table(
    engine: type[DataParallelEngine], config: FsdpConfig, model_config: Any, *, trainable: bool, world_size: int
) -> WrapPlanTable:
    """Build the model, on the meta device if it can be, and plan it as the engine would.

    Raises:
        UserError: the model cannot be built, the ranks do not fit, or a rule of units is broken.
    """
    WrapConfigError.raise_if(backend_problems(config, engine.strategy))
    topology = engine.resolve_topology(config, world_size)
    layout = engine.layout_class(config, topology, trainable)
    read = model_config.get if isinstance(model_config, dict) else lambda key: getattr(model_config, key, None)
    precision = resolve_precision(config, read("precision"), trainable, get_platform())
    policy: Any = get_model_skeleton(model_config, torch_dtype=precision.weights)
    if not trainable:
        policy.requires_grad_(False)
    elif policy.adapter_config() is not None:
        precision = adapter_precision(policy, precision)
    if not layout.has_units:
        total = sum(parameter.numel() for parameter in policy.parameters())
        reason = f"layout {layout.name} ({topology}) has no units"
        return WrapPlanTable(rows=(("(root)", type(policy).__name__, f"{total:,}", "", reason),))
    plan = resolve_wrap_plan(
        policy, config, strategy=engine.strategy, precision=unit_precision(config, precision),
        shards=topology.is_sharded,
    )  # fmt: skip
    return table(plan)


def table(plan: WrapPlan) -> WrapPlanTable:
    """The units in the order of definition; alike blocks of one list stand in one row."""
    rows = tuple(_row(units) for units in _alike(plan))
    ignored = (f"left whole on every rank: {', '.join(plan.ignored)}",) if plan.ignored else ()
    return WrapPlanTable(rows=rows, notices=plan.notices + ignored, warnings=plan.warnings)


def _alike(plan: WrapPlan) -> list[list[WrapUnit]]:
    """Units that differ in the numbers of their path alone, together."""
    groups: dict[Any, list[WrapUnit]] = {}
    for unit in plan.units:
        key = (_pattern(unit.path), unit.class_name, unit.parameters, unit.precision, unit.policy, unit.reason)
        groups.setdefault(key, []).append(unit)
    return list(groups.values())


def _pattern(path: str) -> tuple[str, ...]:
    return tuple("#" if part.isdigit() else part for part in path.split("."))


def _row(units: list[WrapUnit]) -> tuple[str, str, str, str, str]:
    first = units[0]
    size = f"{first.parameters:,}" if len(units) == 1 else f"{len(units)} x {first.parameters:,}"
    mode = f" ({first.mode})" if first.mode in ("subtree", "combined") else ""
    return _path(units) + mode, first.class_name, size, _precision(first), first.reason


def _path(units: list[WrapUnit]) -> str:
    """The path, with the range of each number that differs: ``layers.{0..3}.mlp``."""
    columns = zip(*(unit.path.split(".") for unit in units), strict=True)
    parts = []
    for column in columns:
        different = list(dict.fromkeys(column))
        if len(different) == 1:
            parts.append(different[0])
            continue
        numbers = sorted(map(int, different))
        whole = numbers == list(range(numbers[0], numbers[-1] + 1))
        parts.append(f"{{{numbers[0]}..{numbers[-1]}}}" if whole else "{" + ",".join(map(str, numbers)) + "}")
    return ".".join(parts) or "(root)"


def _precision(unit: WrapUnit) -> str:
    if unit.policy is not None:
        return f"{unit.policy}: {unit.precision}"
    return str(unit.precision)
