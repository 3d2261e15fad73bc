"""The data plane between the processes of a run: endpoints, the way each payload takes, and what is pending.

Names are imported on first use; nothing here imports torch before a tensor is sent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.runtime.transport.address import Address, EndpointConfig, parse_address
    from plugrl.runtime.transport.choice import PayloadSpec, Transport, choose, register_transport
    from plugrl.runtime.transport.endpoint import Endpoint
    from plugrl.runtime.transport.here import configure, current, shut_down
    from plugrl.runtime.transport.pending import DEFAULT_TIMEOUT_S, Pending, set_watch

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Address",
    "Endpoint",
    "EndpointConfig",
    "PayloadSpec",
    "Pending",
    "Transport",
    "choose",
    "configure",
    "current",
    "parse_address",
    "register_transport",
    "set_watch",
    "shut_down",
]

_LAZY = {
    "DEFAULT_TIMEOUT_S": "pending",
    "Address": "address",
    "Endpoint": "endpoint",
    "EndpointConfig": "address",
    "PayloadSpec": "choice",
    "Pending": "pending",
    "Transport": "choice",
    "choose": "choice",
    "configure": "here",
    "current": "here",
    "parse_address": "address",
    "register_transport": "choice",
    "set_watch": "pending",
    "shut_down": "here",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
