"""Names of floating-point types: torch's and verl's spellings become ``fp32``, ``bf16`` and ``fp16``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

_DTYPE_NAMES = {
    "float32": "fp32", "torch.float32": "fp32", "float": "fp32",
    "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "float16": "fp16", "torch.float16": "fp16", "half": "fp16",
}  # fmt: skip


def _short(value: Any) -> Any:
    return _DTYPE_NAMES.get(value, value) if isinstance(value, str) else value


def _short_mode(value: Any) -> Any:
    """``no`` is seed 004's word for plain fp32; YAML may have read it as a boolean."""
    return "fp32" if value == "no" or value is False else _short(value)


Dtype = Annotated[Literal["fp32", "bf16", "fp16"], BeforeValidator(_short)]
AutoDtype = Annotated[Literal["auto", "fp32", "bf16", "fp16"], BeforeValidator(_short_mode)]
