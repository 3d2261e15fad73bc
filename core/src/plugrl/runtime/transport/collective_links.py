"""Pairs of processes joined by a platform's collectives: a group of two for each direction, made when it is needed.

Every message is announced over the endpoints' connection, in the order in which it goes through the group; a thread of
the receiver takes them in this order, whoever asks for them when. A group that failed is given up at both ends: the
next message makes another one, under the next number.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from plugrl.errors import TransportError, one_line
from plugrl.runtime.transport.device_paths import DevicePaths

if TYPE_CHECKING:
    from torch.distributed import Store

Done = Callable[[Any, TransportError | None], None]
"""Takes the bytes that came, or why they did not."""

_SENDER, _RECEIVER = 0, 1
_CLOSE_S = 1.0


@dataclass
class _Link:
    """One direction between two processes; ``group`` is None until it is needed, and after a failure."""

    number: int = 0
    group: Any = None
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> None:
        """Give up the group."""
        group, self.group = self.group, None
        if group is not None:
            _destroy(group)


class _Incoming:
    """What one sender sends, taken in its order by a thread."""

    def __init__(self, name: str) -> None:
        self.link = _Link()
        self._line: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, take: Callable[[], None]) -> None:
        """Have this done after what was put before."""
        self._line.put(take)

    def stop(self, timeout_s: float = 0.0) -> None:
        """End when what was put is done; wait so long for that."""
        self._line.put(None)
        if timeout_s:
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (take := self._line.get()) is not None:
            take()
        self.link.end()


class CollectiveLinks:
    """The groups of one process.

    Args:
        uid: of this process's endpoint.
        paths: its device and the backend.
        open_store: opens the store of the run, where the two ends of a pair meet; each group has a client of its own,
            since one that waits is of no use to others.
        timeout_s: limit of the meeting, and of a transfer.
    """

    def __init__(self, uid: str, paths: DevicePaths, open_store: Callable[[], Store], timeout_s: float) -> None:
        self._uid, self._paths, self._open_store = uid, paths, open_store
        self._timeout = timedelta(seconds=timeout_s)
        self._mutex = threading.Lock()
        self._out: dict[str, _Link] = {}
        self._in: dict[str, _Incoming] = {}
        self._closed = False

    def send(self, target: str, flat: Any, announce: Callable[[int], None]) -> None:
        """Send bytes of a device; ``announce`` tells the other end the group's number and what comes.

        Raises TransportError, after which the group is given up; what ``announce`` raises passes through.
        """
        with self._mutex:
            link = self._out.setdefault(target, _Link())
        with link.mutex:
            announce(link.number)
            try:
                if link.group is None:
                    link.group = self._meet(self._uid, target, link.number, _SENDER)
                link.group.send([flat], _RECEIVER, 0).wait()
            except Exception as error:  # Whatever a vendor's collectives raise.
                link.end()
                link.number += 1
                raise TransportError(f"{self._paths.backend} failed: {one_line(error)}") from error

    def receive(self, source: str, number: int, size: int, done: Done) -> None:
        """Have ``size`` bytes taken from group ``number`` of a sender, after those that were announced before."""
        with self._mutex:
            if self._closed:
                return
            incoming = self._in.get(source)
            if incoming is None:
                incoming = self._in[source] = _Incoming(f"plugrl-endpoint-{self._paths.backend}")
            incoming.put(partial(self._take, source, incoming.link, number, size, done))

    def forget(self, uid: str, timeout_s: float = 0.0) -> None:
        """Give up the groups with a process that is gone, or was disconnected. A transfer under way ends by itself."""
        with self._mutex:
            link, incoming = self._out.pop(uid, None), self._in.pop(uid, None)
        if incoming is not None:
            incoming.stop(timeout_s)
        if link is not None and link.mutex.acquire(blocking=False):
            link.end()
            link.mutex.release()

    def close(self) -> None:
        """Give up all groups and end the threads."""
        with self._mutex:
            self._closed = True
            known = self._out.keys() | self._in.keys()
        for uid in known:
            self.forget(uid, _CLOSE_S)

    # ----------------------------------------------------------------- details
    def _take(self, source: str, link: _Link, number: int, size: int, done: Done) -> None:
        import torch

        try:
            if link.group is None or link.number != number:
                link.end()
                link.group, link.number = self._meet(source, self._uid, number, _RECEIVER), number
            device = torch.device(self._paths.kind, self._paths.index)
            flat = torch.empty(size, dtype=torch.uint8, device=device)
            link.group.recv([flat], _SENDER, 0).wait()
            getattr(torch, self._paths.kind).synchronize(device)
        except Exception as error:  # Whatever a vendor's collectives raise.
            link.end()
            done(None, TransportError(f"{self._paths.backend} failed: {one_line(error)}"))
        else:
            done(flat, None)

    def _meet(self, sender: str, receiver: str, number: int, rank: int) -> Any:
        """Make the group of two, outside of every other one of the process."""
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        name = f"ccl/{sender}/{receiver}/{number}"
        # torch has no public way to make a group of processes that share no default group; without global ranks this
        # one asks nothing of it.
        group, _ = distributed_c10d._new_process_group_helper(
            2, rank, [], self._paths.backend, dist.PrefixStore(name, self._open_store()),
            group_name=distributed_c10d.GroupName(name), timeout=self._timeout,
        )  # fmt: skip
        distributed_c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
        return group


def _destroy(group: Any) -> None:
    import torch.distributed as dist

    try:
        dist.destroy_process_group(group)
    except (RuntimeError, KeyError, ValueError):
        pass  # It had failed already.
