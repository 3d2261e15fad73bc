"""Workers that tests call in all ways there are: they take time, give items one by one, stop answering, die."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plugrl.runtime.worker import Worker
from plugrl.testing.workers import EchoWorker


class CallWorker(EchoWorker):
    """Does what handles are there for: takes time, gives items one by one, holds locks, ends itself."""

    async def later(self, value: Any, seconds: float = 0.0) -> Any:
        """Return ``value`` after some time in the event loop."""
        await asyncio.sleep(seconds)
        return value

    def count(self, stop: int, pause: float = 0.0, fail_at: int = -1) -> Iterator[int]:
        """Give the numbers below ``stop``, and raise before one of them."""
        for number in range(stop):
            if number == fail_at:
                raise ValueError(f"no {number}")
            time.sleep(pause)
            yield number

    @Worker.timer("nap")
    def nap(self, seconds: float) -> None:
        """Sleep under a timer."""
        time.sleep(seconds)

    def hold_lock(self, seconds: float) -> int:
        """Stay in a call into C that keeps Python's lock."""
        return ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    def give(self, group: str, rank: int, values: Sequence[Any], tag: str = "", timeout: float = 20.0) -> None:
        """Send values to another worker, one after the other."""
        for value in values:
            self.peers.send(value, group, rank, tag=tag, timeout=timeout)

    def take(self, group: str, rank: int, count: int = 1, tag: str = "", timeout: float = 20.0) -> list[Any]:
        """Receive that many values from another worker."""
        return [self.peers.recv(group, rank, tag=tag, timeout=timeout) for _ in range(count)]

    def share(
        self, value: Any, groups: Sequence[tuple[str, Sequence[int]]], src: tuple[str, int] | None = None
    ) -> Any:
        """Take part in a broadcast; only the source's value counts."""
        return self.peers.broadcast(value, groups=groups, src=src, timeout=20)

    def take_into(self, group: str, rank: int, shape: Sequence[int]) -> torch.Tensor:
        """Receive in place, into zeros of a shape."""
        return self.peers.recv_tensor(torch.zeros(*shape), group, rank, timeout=20)

    def give_tensor(self, group: str, rank: int, shape: Sequence[int]) -> None:
        """Send ones of a shape to a worker that receives in place."""
        self.peers.send_tensor(torch.ones(*shape), group, rank, timeout=20)

    def parent(self) -> int:
        """Return the pid of the process that started this one: Ray's server of the node."""
        return os.getppid()

    def question(self) -> str:
        """Return what a child process reads from its standard input."""
        return subprocess.run(["cat"], stdout=subprocess.PIPE, text=True, check=True, timeout=5).stdout

    def die_once(self, marker: str) -> int:
        """End the process when ``marker`` does not exist yet, and make it; return the pid otherwise."""
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return os.getpid()
        os._exit(5)

    def hold_device(self, seconds: float, need_mib: int = 0) -> dict[str, Any]:
        """Hold the device for some time; returns when that began and ended, and how often the state came and left."""
        state = self._state = getattr(self, "_state", None) or _State()
        with self.device([state], need_mib=need_mib, timeout=120):
            began = time.monotonic()
            time.sleep(seconds)
            return {"began": began, "ended": time.monotonic(), "on": state.on, "off": state.off}


class _State:
    """Counts its moves."""

    def __init__(self) -> None:
        self.on = self.off = 0

    def onload(self) -> None:
        """Come to the device."""
        self.on += 1

    def offload(self) -> None:
        """Leave it."""
        self.off += 1
