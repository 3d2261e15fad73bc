"""Precision of single units: the blocks ``mixed_precision``, ``wrappers``, ``mixed_precision_policies``,
``mixed_precision_rules`` and ``amp_autocast``, and the rules C1 to C19 that they keep.

The blocks are checked as they are written, all together, so that ``plugrl config check`` shows every mistake.
Importing this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from plugrl.errors import ConfigError, nearest, one_of
from plugrl.models.precision import short_dtype, torch_dtype_from_precision
from plugrl_engine_fsdp.config.problems import Problem, WrapConfigError

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecision

DTYPE_FIELDS = ("param_dtype", "reduce_dtype", "buffer_dtype")
FLAG_FIELDS = {"keep_low_precision_grads": False, "cast_forward_inputs": True, "cast_root_forward_inputs": True}
"""With their defaults: casting inputs is on, unlike torch's default."""

SELECTORS = ("module_names", "module_classes", "wrap_names")
WrapMode = Literal["individual", "subtree", "combined"]
NAMED_BLOCKS = ("wrappers", "mixed_precision_policies", "mixed_precision_rules")


@dataclass(frozen=True, kw_only=True)
class UnitPrecision:
    """Dtypes of one unit, each ``fp32``, ``bf16``, ``fp16`` or None for the dtype that is there.

    param_dtype: of parameters while gathered, and of compute. reduce_dtype: in which gradients are reduced over ranks;
    None follows param_dtype. buffer_dtype: of floating-point buffers in compute. keep_low_precision_grads: leave
    gradients in the dtype they were computed or reduced in. cast_forward_inputs: cast the unit's inputs to param_dtype.
    cast_root_forward_inputs: the same for the inputs of the whole model.
    """

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = True
    cast_root_forward_inputs: bool = True

    @property
    def in_use(self) -> bool:
        """Whether any dtype is set; the explicit full precision of all three counts as none."""
        dtypes = {self.param_dtype, self.reduce_dtype, self.buffer_dtype}
        return dtypes not in ({None}, {"fp32"})

    def __str__(self) -> str:
        rest = {"reduce": self.reduce_dtype, "buffers": self.buffer_dtype}
        dtypes = [self.param_dtype or "as the weights", *(f"{name} {dtype}" for name, dtype in rest.items() if dtype)]
        words = {"keep_low_precision_grads": "gradients kept low", "cast_forward_inputs": "inputs not cast"}
        words["cast_root_forward_inputs"] = "root inputs not cast"
        unusual = [text for name, text in words.items() if getattr(self, name) != FLAG_FIELDS[name]]
        return ", ".join([*dtypes, *unusual])


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A named set of modules. selector: which of ``module_names``, ``module_classes``, ``wrap_names`` finds them."""

    name: str
    selector: str
    targets: tuple[str, ...]
    mode: WrapMode = "individual"


@dataclass(frozen=True, kw_only=True)
class UnitPrecisionConfig:
    """The named blocks, checked. policies: by wrapper; a wrapper without one has the global precision."""

    wrappers: tuple[Wrapper, ...] = ()
    policies: Mapping[str, tuple[str, UnitPrecision]]

    def policy_of(self, wrapper: str) -> tuple[str, UnitPrecision] | None:
        """Name and precision of the policy bound to ``wrapper``, None for the global one."""
        return self.policies.get(wrapper)


# --------------------------------------------------------------------- one block
def precision_problems(block: Any, where: str = "mixed_precision") -> Iterator[Problem]:
    """Yield what is wrong with a block of precision (rules C1 to C4). ``where`` is its key below ``fsdp_config``."""
    if not isinstance(block, Mapping):
        yield Problem("C1", where, f"mixed_precision must be a mapping of keys, not {block!r}")
        return
    unknown = [key for key in block if key not in DTYPE_FIELDS and key not in FLAG_FIELDS]
    if unknown:
        known = ", ".join((*DTYPE_FIELDS, *FLAG_FIELDS))
        hints = [f"{key} -> {found}" for key in unknown if (found := nearest(str(key), (*DTYPE_FIELDS, *FLAG_FIELDS)))]
        text = f"Unsupported FSDP1 MixedPrecision options: {unknown}; known: {known}"
        yield Problem("C2", where, text + (f"; did you mean {', '.join(hints)}?" if hints else ""))
    for name in DTYPE_FIELDS:
        try:
            short_dtype(block.get(name))
        except ConfigError as error:
            yield Problem("C3", f"{where}.{name}", str(error))
    for name in FLAG_FIELDS:
        if name in block and not isinstance(block[name], bool):
            text = f"MixedPrecision.{name} must be a boolean (true or false), not {block[name]!r}"
            yield Problem("C4", f"{where}.{name}", text)


def parse_precision(block: Any, where: str = "mixed_precision") -> UnitPrecision:
    """Return a block as written. Raises WrapConfigError with all its problems."""
    WrapConfigError.raise_if(precision_problems(block, where))
    values: dict[str, Any] = {name: short_dtype(block.get(name)) for name in DTYPE_FIELDS}
    return UnitPrecision(**values, **{name: block[name] for name in FLAG_FIELDS if name in block})


def build_mixed_precision(block: Any) -> MixedPrecision:
    """Return torch's MixedPrecision for a block. Raises WrapConfigError (rules C1 to C4) with all its problems."""
    return torch_mixed_precision(block if isinstance(block, UnitPrecision) else parse_precision(block))


def torch_mixed_precision(precision: UnitPrecision) -> MixedPrecision:
    """Return torch's MixedPrecision of a precision."""
    from torch.distributed.fsdp import MixedPrecision

    dtypes: dict[str, Any] = {name: torch_dtype_from_precision(getattr(precision, name)) for name in DTYPE_FIELDS}
    return MixedPrecision(**dtypes, **{name: getattr(precision, name) for name in FLAG_FIELDS})


# --------------------------------------------------------------------- the named blocks
def wrapper_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the named blocks of ``fsdp_config`` as written (rules C5 to C19)."""
    blocks: dict[str, Mapping[Any, Any]] = {}
    malformed = False
    for name in NAMED_BLOCKS:
        block = config.get(name)
        if block is not None and not isinstance(block, Mapping):
            yield Problem("C5", name, f"{name} must be a mapping of names, not {block!r}")
            malformed = True
            block = {}
        blocks[name] = block or {}
    # C6: nothing named, nothing to check.
    if not malformed and not any(blocks.values()):
        return
    wrappers, policies, rules = (blocks[name] for name in NAMED_BLOCKS)
    yield from _surroundings(config, bool(rules))
    for name, block in policies.items():
        yield from _policy_problems(name, block)
    for wrapper, policy in rules.items():
        where = f"mixed_precision_rules.{wrapper}"
        if wrapper not in wrappers:
            text = f"Unknown wrapper {wrapper!r} in mixed_precision_rules; there are: {one_of(map(str, wrappers))}"
            yield Problem("C13", where, text)
        if not isinstance(policy, str) or policy not in policies:
            text = f"Wrapper {wrapper!r}: unknown policy {policy!r}; there are: {one_of(map(str, policies))}"
            yield Problem("C14", where, text)
    for name, block in wrappers.items():
        yield from _wrapper_problems(name, block)


def _surroundings(config: Mapping[str, Any], has_rules: bool) -> Iterator[Problem]:
    """C7 to C9: what named blocks cannot stand beside. A strategy that is not said here is the engine's to check."""
    strategy = config.get("strategy")
    if strategy is not None:
        yield from strategy_problems(config, strategy)
    if config.get("disable") is True:
        yield Problem("C8", "disable", "Named wrappers conflict with disable=true, which makes the model one unit")
    if has_rules and _autocast_enabled(config):
        text = "mixed_precision_rules requires amp_autocast.enabled=false: autocast would override the units' dtypes"
        yield Problem("C9", "amp_autocast.enabled", text)


def strategy_problems(config: Any, strategy: str) -> Iterator[Problem]:
    """Yield C7 when ``strategy`` cannot have the named blocks of ``config``, a mapping or an FsdpConfig."""
    read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    if strategy == "fsdp" or not any(read(name) for name in NAMED_BLOCKS):
        return
    if strategy == "fsdp2" and read("fsdp2_unit_precision") is True:
        return
    also = "; or set fsdp2_unit_precision=true" if strategy == "fsdp2" else ""
    yield Problem("C7", "wrappers", f"Named wrappers require strategy='fsdp' (FSDP1), not {strategy!r}{also}")


def backend_problems(config: Any, strategy: str) -> Iterator[Problem]:
    """Yield what an FsdpConfig asks of the engine ``strategy`` that this one has not."""
    yield from strategy_problems(config, strategy)
    if config.strategy not in (None, strategy):
        yield Problem("", "strategy", f"is {config.strategy}, but this engine is {strategy}; set the key beside it")
    if strategy == "fsdp":
        if config.mixed_precision_policy.param_dtype is not None:
            yield Problem("", "mixed_precision_policy", "is of fsdp2; strategy fsdp takes mixed_precision")
        if config.param_offload:
            yield Problem("", "param_offload", "FSDP1 cannot move its flat parameters; use strategy fsdp2")
        return
    if config.amp_autocast.enabled:
        yield Problem("", "amp_autocast.enabled", f"is of strategy fsdp; {strategy} casts by dtype or mixed_precision")
    blocks = {"mixed_precision": config.mixed_precision}
    blocks |= {f"mixed_precision_policies.{name}": block for name, block in config.mixed_precision_policies.items()}
    for where, block in blocks.items():
        if block is not None and block.keep_low_precision_grads:
            text = f"is of strategy fsdp; {strategy} gives gradients in the dtype of the parameters"
            yield Problem("", f"{where}.keep_low_precision_grads", text)


def _autocast_enabled(config: Mapping[str, Any]) -> bool:
    block = config.get("amp_autocast")
    return isinstance(block, Mapping) and block.get("enabled") is True


def _policy_problems(name: Any, block: Any) -> Iterator[Problem]:
    where = f"mixed_precision_policies.{name}"
    if not isinstance(name, str) or not name:
        yield Problem("C10", where, f"policy names must be non-empty strings, not {name!r}")
    if not isinstance(block, Mapping):
        yield Problem("C11", where, f"Policy {name!r} must be a mapping of keys, not {block!r}")
        return
    missing = [field for field in DTYPE_FIELDS if field not in block]
    if missing:
        yield Problem("C12", where, f"Policy {name!r} is missing dtype fields: {missing}; null keeps what is there")
    yield from precision_problems(block, where)


def _wrapper_problems(name: Any, block: Any) -> Iterator[Problem]:
    where = f"wrappers.{name}"
    if not isinstance(name, str) or not name:
        yield Problem("C15", where, f"wrapper names must be non-empty strings, not {name!r}")
    if not isinstance(block, Mapping):
        yield Problem("C15", where, f"Wrapper {name!r} must be a mapping of keys, not {block!r}")
        return
    unknown = [key for key in block if key not in (*SELECTORS, "wrap_mode")]
    if unknown:
        known = ", ".join((*SELECTORS, "wrap_mode"))
        yield Problem("C16", where, f"Wrapper {name!r}: unsupported options {unknown}; known: {known}")
    given = [key for key in SELECTORS if block.get(key) is not None]
    if len(given) != 1:
        text = f"Wrapper {name!r} requires exactly one module selector of {', '.join(SELECTORS)}, got {given}"
        yield Problem("C17", where, text)
    for key in given:
        targets = block[key]
        listed = isinstance(targets, Sequence) and not isinstance(targets, str) and bool(targets)
        if not listed or not all(isinstance(target, str) and target for target in targets):
            text = f"Wrapper {name!r}: selector must be a non-empty string list, not {targets!r}"
            yield Problem("C18", f"{where}.{key}", text)
    mode = block.get("wrap_mode", "individual")
    if not isinstance(mode, str) or mode not in get_args(WrapMode):
        text = f"Wrapper {name!r}: wrap_mode must be individual, subtree, or combined, got {mode!r}"
        yield Problem("C19", f"{where}.wrap_mode", text)


# --------------------------------------------------------------------- the whole section
def autocast_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield an error when autocast and FSDP's own mixed precision are both asked for."""
    block = config.get("mixed_precision")
    if not _autocast_enabled(config) or not isinstance(block, Mapping) or any(precision_problems(block)):
        return
    if parse_precision(block).in_use:
        text = "amp_autocast.enabled conflicts with mixed_precision, which casts already; set its dtypes to null"
        yield Problem("", "amp_autocast.enabled", text)


def section_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Return everything that is wrong with the precision of ``fsdp_config`` as written."""
    block = config.get("mixed_precision")
    if isinstance(block, Mapping):  # "auto" is this engine's own word for the model's or the platform's choice
        block = {key: value for key, value in block.items() if (key, value) != ("param_dtype", "auto")}
    problems = list(precision_problems(block)) if block is not None else []
    return [*problems, *autocast_problems(config), *wrapper_problems(config)]


def validate_fsdp_wrapper_config(config: Mapping[str, Any]) -> None:
    """Check ``fsdp_config`` before any model is loaded. Raises WrapConfigError with the problems of all its blocks."""
    WrapConfigError.raise_if(section_problems(config))


def named_units(config: Any) -> UnitPrecisionConfig:
    """Return the named blocks of a checked ``fsdp_config``, a mapping or an FsdpConfig."""
    read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    wrappers, policies, rules = (read(name) or {} for name in NAMED_BLOCKS)
    wrappers, policies = _plain(wrappers), _plain(policies)
    parsed = {name: parse_precision(block, f"mixed_precision_policies.{name}") for name, block in policies.items()}
    return UnitPrecisionConfig(
        wrappers=tuple(_wrapper(name, block) for name, block in wrappers.items()),
        policies={wrapper: (policy, parsed[policy]) for wrapper, policy in rules.items()},
    )


def _plain(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks as mappings, also where they are models of the section."""
    return {name: block.model_dump() if hasattr(block, "model_dump") else block for name, block in blocks.items()}


def _wrapper(name: str, block: Mapping[str, Any]) -> Wrapper:
    selector = next(key for key in SELECTORS if block.get(key) is not None)
    return Wrapper(
        name=name, selector=selector, targets=tuple(block[selector]), mode=block.get("wrap_mode", "individual")
    )
