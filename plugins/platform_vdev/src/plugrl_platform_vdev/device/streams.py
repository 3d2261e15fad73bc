"""Streams and events of ``torch.vdev``. Work is done when the call that queues it returns, so nothing ever waits."""

from __future__ import annotations

from typing import Any

import torch

from plugrl_platform_vdev.device.native import Device, index_of


class Stream(torch.Stream):
    """A stream of a device; ``priority`` is taken and means nothing."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("vdev", index_of(device)), priority=priority)


class Event:
    """Makes a point in a stream; the time between two is measured whether or not ``enable_timing`` is set.

    What it makes is a plain ``torch.Event``: torch compares times of exactly that type alone.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise RuntimeError("vdev events cannot be shared between processes.")
        return torch.Event(device="vdev", enable_timing=True, blocking=blocking)


def _of(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: Device = None) -> Stream:
    """Return the stream that the thread works on."""
    return _of(torch.accelerator.current_stream(torch.device("vdev", index_of(device))))


def default_stream(device: Device = None) -> Stream:
    """Return the stream that every thread works on at first."""
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    return Stream(stream_id=0, device_index=index_of(device), device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Work on a stream from now on, in this thread; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """A block on another stream, and on its device."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: list[torch.Stream] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before = [torch.accelerator.current_stream(self.stream.device), torch.accelerator.current_stream()]
            torch.accelerator.set_stream(self.stream)

    def __exit__(self, *error: Any) -> None:
        for stream in self._before:  # the last one is of the device that was in use
            torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a block on ``stream``; None changes nothing."""
    return StreamContext(stream)
