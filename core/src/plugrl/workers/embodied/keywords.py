"""Which keyword arguments a policy's method takes: models of other people need not know all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def accepted(method: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``given`` that the method names or takes as ``**kwargs``."""
    parameters = inspect.signature(method).parameters
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}
