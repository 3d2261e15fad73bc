"""How new weights reach the rollout: routes, the two ends of one, and the kinds of syncers.

Names are imported on first use, as in :mod:`plugrl.runtime`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.runtime.sync.base import Received, ReceiverEnd, SenderEnd, SyncReport, WeightSyncer
    from plugrl.runtime.sync.ends import WeightReceiver, WeightSender
    from plugrl.runtime.sync.registry import WEIGHT_SYNCERS, get_weight_syncer, register_weight_syncer
    from plugrl.runtime.sync.route import WeightRoute, weight_route
    from plugrl.runtime.sync.source import TensorSpec, WeightSource, check_keys, specs_of

_LAZY = {
    "Received": "base",
    "ReceiverEnd": "base",
    "SenderEnd": "base",
    "SyncReport": "base",
    "TensorSpec": "source",
    "WEIGHT_SYNCERS": "registry",
    "WeightReceiver": "ends",
    "WeightRoute": "route",
    "WeightSender": "ends",
    "WeightSource": "source",
    "WeightSyncer": "base",
    "check_keys": "source",
    "get_weight_syncer": "registry",
    "register_weight_syncer": "registry",
    "specs_of": "source",
    "weight_route": "route",
}
__all__ = [
    "Received",
    "ReceiverEnd",
    "SenderEnd",
    "SyncReport",
    "TensorSpec",
    "WEIGHT_SYNCERS",
    "WeightReceiver",
    "WeightRoute",
    "WeightSender",
    "WeightSource",
    "WeightSyncer",
    "check_keys",
    "get_weight_syncer",
    "register_weight_syncer",
    "specs_of",
    "weight_route",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
