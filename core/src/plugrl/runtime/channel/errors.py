"""Errors of channels that are also those of asyncio's queues, which take long to import: see also plugrl.errors."""

from __future__ import annotations

from asyncio import QueueEmpty, QueueFull

from plugrl.errors import ChannelClosed, PlugRLError

__all__ = ["ChannelClosed", "ChannelEmpty", "ChannelFull"]


class ChannelFull(PlugRLError, QueueFull):
    """A channel has no room for an item and nobody wanted to wait."""


class ChannelEmpty(PlugRLError, QueueEmpty):
    """A channel has no item and nobody wanted to wait."""
