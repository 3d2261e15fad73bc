"""A Ray actor that keeps messages until they are asked for. Imports no torch, so that it starts quickly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import ray


class Mailbox:
    """Queues of messages by address: ``("to", i)`` for receiver i, ``("from", i)`` for its answers."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], asyncio.Queue[Any]] = defaultdict(asyncio.Queue)

    async def reset(self, indices: Sequence[int]) -> None:
        """Throw away what an earlier transfer left."""
        for index in indices:
            self._queues[("to", index)] = asyncio.Queue()
            self._queues[("from", index)] = asyncio.Queue()

    async def post(self, box: str, indices: Sequence[int], message: Any) -> None:
        """Put a message into the queue of each index."""
        for index in indices:
            self._queues[(box, index)].put_nowait(message)

    async def take(self, box: str, index: int, timeout: float) -> Any:
        """Return the next message, None after ``timeout`` seconds."""
        end = asyncio.get_running_loop().time() + timeout
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                # The queue may be exchanged by a reset meanwhile, so look again every now and then.
                return await asyncio.wait_for(self._queues[(box, index)].get(), min(left, 0.2))
            except TimeoutError:
                continue
        return None


def start_mailbox(receivers: int) -> Any:
    """Start the actor; it ends with the driver's Ray job."""
    return ray.remote(Mailbox).options(num_cpus=0, max_concurrency=4 * receivers + 8).remote()
