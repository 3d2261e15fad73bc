"""A Ray actor that keeps messages until they are asked for. Imports no torch, so that it starts quickly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


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


def start_mailbox(receivers: int, node_id: str) -> Any:
    """Start the actor on the sender's node; it ends with the driver's Ray job."""
    # Elsewhere the loss of a third node would end the transfer too.
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": strategy}
    return ray.remote(Mailbox).options(max_concurrency=4 * receivers + 8, **options).remote()
