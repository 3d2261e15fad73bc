"""Names of floating-point types in configurations. Importing it needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.errors import ConfigError

if TYPE_CHECKING:
    import torch

_SHORT: dict[str, str | None] = {
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "fp16": "fp16",
    "16": "fp16",
    "16-mixed": "fp16",
    "fp32": "fp32",
    "32": "fp32",
    "32-true": "fp32",
    "null": None,
}
_TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LONG = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


def short_dtype(precision: Any) -> str | None:
    """Return ``fp32``, ``bf16`` or ``fp16`` for a precision as RLinf spells it; None for null.

    Raises ConfigError for everything else, torch's own names and booleans included.
    """
    if precision is None:
        return None
    # True == 1 and 16.0 == 16, but neither is a precision anybody meant to write.
    if isinstance(precision, str) or type(precision) is int:
        name = str(precision)
        if name in _SHORT:
            return _SHORT[name]
        hint = _LONG.get(name.removeprefix("torch."))
        if hint:
            raise ConfigError(f"{precision!r} is no precision; did you mean {hint}?")
    raise ConfigError(f"{precision!r} is no precision; it is one of fp32, bf16, fp16 or null")


def torch_dtype_from_precision(precision: Any) -> torch.dtype | None:
    """Return the torch dtype of ``bf16``, ``16-mixed``, ``32``, ...; None keeps a checkpoint's dtype.

    Raises ConfigError as :func:`short_dtype`.
    """
    import torch

    name = short_dtype(precision)
    return None if name is None else getattr(torch, _TORCH[name])
