"""Ray underneath: the session, worker groups, handles, placement and the transfer of weights.

Names are imported on first use, so that importing this package costs nothing and pulls in neither ray nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup
    from plugrl.runtime.handle import Handle, async_wait_all, wait_all
    from plugrl.runtime.placement import PlacementError, resolve_placement
    from plugrl.runtime.policy import restart
    from plugrl.runtime.session import RaySession
    from plugrl.runtime.weights import WeightReceiver, WeightRoute, WeightSender, weight_route
    from plugrl.runtime.worker import Worker, WorkerContext

__all__ = [
    "Handle",
    "PlacementError",
    "RaySession",
    "WeightReceiver",
    "WeightRoute",
    "WeightSender",
    "Worker",
    "WorkerContext",
    "WorkerGroup",
    "async_wait_all",
    "resolve_placement",
    "restart",
    "wait_all",
    "weight_route",
]

_LAZY = {
    "Handle": "handle",
    "PlacementError": "placement",
    "RaySession": "session",
    "WeightReceiver": "weights",
    "WeightRoute": "weights",
    "WeightSender": "weights",
    "Worker": "worker",
    "WorkerContext": "worker",
    "WorkerGroup": "group",
    "async_wait_all": "handle",
    "resolve_placement": "placement",
    "restart": "policy",
    "wait_all": "handle",
    "weight_route": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
