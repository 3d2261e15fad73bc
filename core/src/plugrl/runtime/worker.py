"""The base class of everything that runs on a device, and what a worker knows about its place."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from plugrl.errors import PlugRLError
from plugrl.runtime.address import WorkerAddress

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase
    from plugrl.runtime.channel import Channel
    from plugrl.runtime.device_assignment import AssignedDevice
    from plugrl.runtime.directory import Directory
    from plugrl.runtime.flow.device_turns import Movable
    from plugrl.runtime.network import RunAccess, WorkerNetwork
    from plugrl.runtime.peers import Peers
    from plugrl.runtime.placement import ProcessPlacement
    from plugrl.runtime.transport import Pending


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Where a worker stands in its group and on its node.

    Attributes:
        group: name of the worker group.
        rank: rank in the group; ``world_size`` ranks in all.
        local_rank: rank among those of the group on the same node.
        node_id, node_ip: Ray's node.
        device_index: logical index of the worker's device, as torch counts in this process: 0 where a mask lets the
            worker see its own device alone.
        num_threads: threads torch may use.
        master_address, master_port: where rank 0 offers the rendezvous; port 0 when the group has one rank.
        run_id: the run that all names belong to; ``generation`` counts the launches under the group's name.
        run_directory: folder of this run for sockets and other short-lived files, readable by its owner alone.
        collective_timeout_s: seconds a collective may take.
        node_name: what messages call the node.
        device: which device the worker was given, and what became of that; None before the worker took it.
        placement: node group, node rank and hardware of this rank; None where the group was given bare devices.
        access: how the worker meets those of other groups; None outside a session.
    """

    group: str
    rank: int
    world_size: int
    local_rank: int
    node_id: str
    node_ip: str
    device_index: int
    num_threads: int
    master_address: str
    master_port: int
    run_id: str = ""
    generation: int = 0
    run_directory: str = ""
    collective_timeout_s: float = 1800.0
    node_name: str = ""
    device: AssignedDevice | None = None
    placement: ProcessPlacement | None = None
    access: RunAccess | None = None


class Worker:
    """One rank of a worker group: derive from it, put what is slow into :meth:`setup`, add methods to execute.

    The host sets ``context`` and ``platform`` before ``__init__`` runs, so both may be used there. With more than one
    rank the process group stands when :meth:`setup` runs, unless the class says ``process_group = False``.
    """

    process_group: ClassVar[bool] = True
    context: WorkerContext
    platform: PlatformBase
    _store: Any = None
    _timers: dict[str, float] | None = None
    _network: WorkerNetwork | None = None

    def setup(self) -> None:
        """Make the worker ready; called once, after the process group stands. The base class does nothing."""

    def settle(self) -> None:
        """Come to rest: calls run one after the other, so when this one answers, nothing is in flight.

        An override also ends what the worker does by itself. Work may go on afterwards.
        """

    @property
    def rank(self) -> int:
        """Rank in the group."""
        return self.context.rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the group."""
        return self.context.world_size

    @property
    def group_name(self) -> str:
        """Name of the group."""
        return self.context.group

    @property
    def address(self) -> WorkerAddress:
        """Group and rank, as the other workers know this one."""
        return WorkerAddress(self.context.group, self.context.rank)

    @property
    def peers(self) -> Peers:
        """The workers of all groups: send to them, receive from them. Raises PlugRLError outside a session."""
        if self._network is None:
            raise PlugRLError("This worker belongs to no session, so there is nobody to reach.")
        return self._network.peers

    @property
    def directory(self) -> Directory:
        """Names of the run that every process may publish and look up. Raises PlugRLError outside a session."""
        if self._network is None:
            raise PlugRLError("This worker belongs to no session, so there is no directory.")
        return self._network.directory

    def channel(self, name: str, *, timeout: float | None = 60.0) -> Channel:
        """Return a channel of the run, as soon as somebody has created it. Raises RuntimeTimeout."""
        from plugrl.runtime.channel import Channel

        return Channel.connect(self, name, timeout=timeout)

    def device(
        self,
        state: Sequence[Movable] = (),
        *,
        need_mib: int = 0,
        after: Iterable[Pending[Any]] = (),
        timeout: float | None = 60.0,
    ) -> AbstractContextManager[None]:
        """Hold this worker's device for a block: ``with self.device([self.policy], after=[batch]):``.

        Workers of all groups that share a device take turns in the order of asking. ``state`` (with ``onload`` and
        ``offload``) is there in the block, and stays until somebody else needs its ``need_mib``; see
        :meth:`plugrl.runtime.flow.device_turns.DeviceTurns.turn`. Raises PlugRLError outside a session.
        """
        turns = self._network.turns if self._network is not None else None
        if turns is None:
            raise PlugRLError("This worker has no device of a session, so there are no turns to take.")
        return turns.turn(state, need_mib=need_mib, after=after, timeout=timeout)

    @contextmanager
    def worker_timer(self, tag: str) -> Iterator[None]:
        """Add the seconds of the block to ``tag``; the driver reads them by ``handle.consume_durations()``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            timers = self._timers = self._timers or {}
            timers[tag] = timers.get(tag, 0.0) + time.perf_counter() - began

    @staticmethod
    def timer(tag: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a method to do the same for each of its calls."""

        def decorate(method: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(method)
            def timed(*args: P.args, **kwargs: P.kwargs) -> R:
                worker: Any = args[0]
                with worker.worker_timer(tag):
                    return method(*args, **kwargs)

            return timed

        return decorate

    def take_timers(self) -> dict[str, float]:
        """Return the seconds by tag since the last call of this method, and start anew."""
        timers, self._timers = self._timers, None
        return timers or {}

    def init_process_group(self) -> None:
        """Join torch's default process group with the platform's backend; nothing when it stands already.

        The rendezvous is the socket that rank 0 opened on the node's own address, so no port is ever guessed. Waits of
        the group, and of every later collective, end after ``context.collective_timeout_s``.
        """
        import torch.distributed as dist

        if dist.is_initialized():
            return
        from plugrl.runtime.rendezvous import open_store

        context = self.context
        if self._store is None:
            self._store, _ = open_store(context.node_ip, context.collective_timeout_s)
        dist.init_process_group(
            self.platform.communication_backend_name(),
            store=dist.PrefixStore(f"{context.group}.{context.generation}", self._store),
            rank=context.rank,
            world_size=context.world_size,
            timeout=timedelta(seconds=context.collective_timeout_s),
        )

    def close(self) -> None:
        """Release what the worker holds; called before its process ends. An override calls this one last."""
        import sys

        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
        self._store = None
