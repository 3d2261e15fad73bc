"""Channels between the processes of a run: queues with bounds, keys, weights, balancing and an end of the stream.

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.runtime.channel.balancers import BALANCERS, Balancer, partition
    from plugrl.runtime.channel.channel import DEFAULT_KEY, Batch, Channel
    from plugrl.runtime.channel.errors import ChannelClosed, ChannelEmpty, ChannelFull

__all__ = [
    "BALANCERS",
    "DEFAULT_KEY",
    "Balancer",
    "Batch",
    "Channel",
    "ChannelClosed",
    "ChannelEmpty",
    "ChannelFull",
    "partition",
]

_LAZY = {
    "BALANCERS": "balancers",
    "DEFAULT_KEY": "channel",
    "Balancer": "balancers",
    "Batch": "channel",
    "Channel": "channel",
    "ChannelClosed": "errors",
    "ChannelEmpty": "errors",
    "ChannelFull": "errors",
    "partition": "balancers",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
