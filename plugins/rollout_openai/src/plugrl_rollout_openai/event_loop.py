"""An event loop in a thread of its own: engines keep tasks between two calls of a backend, which is synchronous."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from plugrl.errors import RuntimeTimeout
from plugrl.runtime.cancellation import raise_if_cancelled

T = TypeVar("T")
_TICK_S = 0.2


class EventLoop:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], what: str, timeout: float | None = None) -> T:
        """Return what a coroutine returns; one that is not done in time, or whose call is cancelled, is stopped.

        Raises RuntimeTimeout.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        waited = 0.0
        try:
            while True:
                try:
                    return future.result(_TICK_S)
                except concurrent.futures.TimeoutError:
                    if future.done():
                        raise  # The coroutine's own.
                waited += _TICK_S
                raise_if_cancelled()
                if timeout is not None and waited >= timeout:
                    raise RuntimeTimeout(f"{what} took longer than {timeout:g} s.")
        finally:
            if not future.done():
                future.cancel()

    def call(self, function: Any, *arguments: Any) -> None:
        """Call a function on the loop, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Stop what still runs, and the thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _end_tasks() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
