"""What a worker sends back when its method ended well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a method returned, the seconds it took in the worker, and what its timers added up (tag: seconds)."""

    value: Any
    seconds: float = 0.0
    timers: Mapping[str, float] = field(default_factory=dict)
