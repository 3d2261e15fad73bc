"""A worker that tests let put into and take from channels."""

from __future__ import annotations

import os
import time

import torch

from plugrl.runtime.channel import Channel, ChannelClosed
from plugrl.runtime.worker import Worker


class ChannelWorker(Worker):
    """Produces and consumes; has no process group."""

    process_group = False

    def create(self, name: str) -> str:
        """Create a channel and return its name."""
        return Channel.create(self, name).name

    def produce(self, name: str, count: int, size: int, timeout: float = 30.0) -> int:
        """Put ``count`` items of ``size`` floats, each with its number in it."""
        channel = self.channel(name)
        for number in range(count):
            channel.put((self.rank, number, torch.full((size,), float(number))), timeout=timeout)
        return count

    def consume(self, name: str, pause: float = 0.0) -> list[tuple[int, int]]:
        """Take items until the channel is closed; return (rank, number) of each, which its tensor must agree with."""
        channel = self.channel(name)
        got: list[tuple[int, int]] = []
        while True:
            try:
                rank, number, tensor = channel.get(timeout=30.0)
            except ChannelClosed:
                return got
            assert bool((tensor == number).all())
            got.append((rank, number))
            time.sleep(pause)

    def ask_and_wait(self, name: str, seconds: float) -> None:
        """Ask for an item, let it come, and never look at it."""
        pending = self.channel(name).get(async_op=True)
        while not pending.done():
            time.sleep(0.005)
        time.sleep(seconds)

    def open_descriptors(self) -> int:
        """Return how many descriptors the process has open."""
        return len(os.listdir("/proc/self/fd"))
