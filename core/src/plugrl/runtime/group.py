"""A set of workers that runs one component: started together, called together, ended together."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from plugrl.errors import PlugRLError, RuntimeTimeout, one_of
from plugrl.runtime import process
from plugrl.runtime.calls import Call, Request
from plugrl.runtime.deadline import DEFAULT, Deadline, Timeout
from plugrl.runtime.failure import RankInfo
from plugrl.runtime.group_placement import place_group
from plugrl.runtime.handle import Handle, wait_together
from plugrl.runtime.host import WorkerSpec
from plugrl.runtime.launching import Launcher
from plugrl.runtime.policy import OnError, Restart
from plugrl.runtime.stream import Stream
from plugrl.runtime.views import RanksView

if TYPE_CHECKING:
    from plugrl.runtime.placement import ComponentPlacement, PlacementStrategy
    from plugrl.runtime.session import RaySession

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0
_LOOK_UP_TIMEOUT_S = 60.0
_TICK_S = 0.05


class WorkerGroup:
    """Workers of one class, a rank for each entry of ``devices``. Returns at once: see :meth:`wait_ready`.

    Args:
        session: a started session.
        worker_class: ``"module:Class"`` that every node can import, or the class itself.
        name: name of the group; one open group at a time may have it.
        devices: device of each rank, counted through all nodes of the session (as placements do).
        placement: where the ranks run, instead of ``devices``: a strategy, or a component of a resolved placement.
            Variables and interpreter of its node groups are those of the workers.
        args, kwargs: what the worker's constructor gets, equal for all ranks.
        num_threads: threads torch may use in each worker; ``cluster.threads_per_worker`` when omitted.
        env: variables of these workers, set before their processes start.
        start_timeout: seconds the group has to become ready; ``cluster.start_timeout_s`` when omitted.
        on_error: ``"raise"`` ends every wait of the session when a process of this group dies, and the group's own
            waits when a method raises. ``"return"`` puts errors into the results, in the places of their ranks.
            :func:`restart` starts a rank that died or froze anew, with the same arguments, and repeats its open calls.
        replaces: the open group of this name, see :meth:`successor`.

    Raises:
        PlugRLError: the name is in use or unfit, or there are no devices.
        DeviceError: a device does not exist.
    """

    def __init__(
        self,
        session: RaySession,
        worker_class: str | type,
        *,
        name: str,
        devices: Sequence[int] = (),
        placement: ComponentPlacement | PlacementStrategy | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float | None = None,
        on_error: OnError = "raise",
        replaces: WorkerGroup | None = None,
    ):
        if not name or not all(c.isalnum() or c in "-_." for c in name):
            raise PlugRLError(f"{name!r} is no name for a worker group: use letters, digits, '-', '_' and '.'.")
        self.session = session
        self.name = name
        self.devices, self.placement = place_group(session, name, devices, placement)
        self.start_timeout = session.config.start_timeout_s if start_timeout is None else start_timeout
        self._policy = on_error
        # Until it takes over nothing depends on the group, so its failures are no failures of the run.
        self.on_error: OnError = on_error if replaces is None else "return"
        self.lock = threading.RLock()
        """Guards what is known of the ranks and of the calls; several threads may wait at once."""
        self.lost_ranks: dict[int, float] = {}
        """Ranks whose process is gone or frozen, and when that was found out, in seconds of the monotonic clock."""
        self._processes: dict[int, RankInfo] = {}
        self._restarts = on_error.times if isinstance(on_error, Restart) else 0
        self._open_calls: weakref.WeakSet[Call] = weakref.WeakSet()
        self._broken = False
        self._closed = False
        # The session's own thread looks at the group from the moment that it is admitted.
        self._reports: dict[Any, int] = {}
        self.actors: list[Any] = []
        spec = WorkerSpec(
            worker=_by_path(worker_class),
            platform=session.platform_name,
            args=tuple(args),
            kwargs=dict(kwargs or {}),
            restarts=isinstance(on_error, Restart),
        )
        self._launcher = Launcher(session, name, self.devices, self.placement, spec, num_threads, env)
        self.seats = self._launcher.seats
        self.generation = session.admit(self, replaces)
        self._launcher.generation = self.generation
        if replaces is None:
            session.network.add(self)
        self.actors = self._launcher.start_all()
        with self.lock:
            self._reports.update({actor.report.remote(): rank for rank, actor in enumerate(self.actors)})
        refs = self._launcher.build_all(self.actors)
        self._ready: Handle[list[Any]] = Handle(Call(self, Request(method="setup"), refs, self.start_timeout))

    # ----------------------------------------------------------------- use
    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    def wait_ready(self, timeout: Timeout = DEFAULT) -> WorkerGroup:
        """Wait until every rank has run its ``setup()``, ``start_timeout`` at most, and return the group.

        Raises what :meth:`plugrl.runtime.handle.Handle.wait` does; a group that failed is closed.
        """
        try:
            wait_together([self._ready], timeout, stop_s=0.0)
        except Exception:
            self.close(graceful=False)
            raise
        return self

    @property
    def ready(self) -> Handle[list[Any]]:
        """The handle of the start, to wait for several groups at once with :func:`plugrl.runtime.wait_all`."""
        return self._ready

    @property
    def has_process_group(self) -> bool:
        """Whether the ranks form one process group, as far as is known."""
        return any(self._ready.results().values())

    def execute(
        self,
        method: str,
        *args: Any,
        ranks: Sequence[int] | None = None,
        per_rank: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
        **kwargs: Any,
    ) -> Handle[list[Any]]:
        """Call a method of the workers and return at once; a coroutine method runs to its end.

        Args:
            method: name of a method of the worker class.
            ranks: the ranks to call, all when omitted; results come in this order.
            per_rank: ``(args, kwargs)`` for each called rank, which follow (and override) the common ones.

        Calls of one rank run one after the other, in the order they were made.
        """
        chosen = self._chosen(ranks)
        request = self._request(method, chosen, args, per_rank, kwargs)
        with self.lock:
            refs = {rank: request.submit(self.actors[rank], rank) for rank in chosen}
            repeats = isinstance(self.on_error, Restart)
            call = Call(self, request, refs, self.session.config.step_timeout_s, is_repeatable=repeats)
            if repeats:
                self._open_calls.add(call)
        return Handle(call)

    def stream(
        self,
        method: str,
        *args: Any,
        ranks: Sequence[int] | None = None,
        per_rank: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
        timeout: Timeout = DEFAULT,
        **kwargs: Any,
    ) -> Stream:
        """Call a generator method and iterate over ``(rank, item)`` as the items come, of each rank in their order.

        ``timeout`` is for each item, ``cluster.step_timeout_s`` when omitted. The iteration raises what
        :meth:`plugrl.runtime.Handle.wait` does.
        """
        chosen = self._chosen(ranks)
        request = self._request(method, chosen, args, per_rank, kwargs)
        return Stream(self, request, chosen, timeout)

    def ranks(self, *ranks: int) -> RanksView:
        """Return a view whose calls go to these ranks alone; the group itself does not change."""
        return RanksView(self, self._chosen(ranks))

    def successor(
        self,
        devices: Sequence[int] = (),
        *,
        placement: ComponentPlacement | PlacementStrategy | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> WorkerGroup:
        """Start the next generation of this group beside it, under the same name, and return at once.

        What is omitted is as it is here. Until :meth:`take_over` the name stands for this group, the new one has
        ``on_error="return"``, and closing it leaves everything as it was. Raises PlugRLError when there is one already.
        """
        old = self._launcher
        return WorkerGroup(
            self.session, old.worker.worker, name=self.name, devices=devices, placement=placement,
            args=old.worker.args if args is None else args, kwargs=old.worker.kwargs if kwargs is None else kwargs,
            num_threads=old.num_threads, env=old.env, start_timeout=self.start_timeout, on_error=self._policy,
            replaces=self,
        )  # fmt: skip

    def take_over(self, old: WorkerGroup) -> None:
        """Let the name stand for this group from now on; ``old``, which it is the successor of, is still to be closed.

        From now on a death in this group, and none in the old one, is a failure of the run.
        """
        self.session.promote(self)
        self.on_error, old.on_error = self._policy, "return"

    @staticmethod
    def attach(session: RaySession, name: str, timeout: Timeout = DEFAULT) -> WorkerGroup:
        """Return the open group of this name, once another thread has launched it and it is ready.

        Raises RuntimeTimeout after ``timeout`` seconds, 60 when omitted.
        """
        deadline = Deadline(timeout, _LOOK_UP_TIMEOUT_S)
        while True:
            group = session.group(name)
            if group is not None:
                return group.wait_ready(deadline.remaining())
            if deadline.is_over:
                known = one_of(group.name for group in session.open_groups())
                raise RuntimeTimeout(f"No worker group {name!r} within {deadline.limit:g} s; open are: {known}.")
            time.sleep(_TICK_S)

    def _chosen(self, ranks: Sequence[int] | None) -> tuple[int, ...]:
        if self._closed:
            raise PlugRLError(f"Worker group {self.name!r} is closed.")
        chosen = tuple(range(self.size)) if ranks is None else tuple(ranks)
        for rank in chosen:
            if not 0 <= rank < self.size:
                raise PlugRLError(f"Worker group {self.name!r} has no rank {rank}: it has {self.size}, from 0.")
        return chosen

    def _request(
        self,
        method: str,
        chosen: Sequence[int],
        args: Sequence[Any],
        per_rank: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None,
        kwargs: Mapping[str, Any],
    ) -> Request:
        if per_rank is not None and len(per_rank) != len(chosen):
            raise PlugRLError(f"{len(per_rank)} argument sets for {len(chosen)} ranks of worker group {self.name!r}.")
        common: Any = (tuple(args), dict(kwargs))
        if len(chosen) > 1 and (args or kwargs):
            common = ray.put(common)
        own = {} if per_rank is None else {
            rank: (tuple(a), dict(k)) for rank, (a, k) in zip(chosen, per_rank, strict=True)
        }
        return Request(method=method, common=common, own=own)

    def close(self, *, graceful: bool = True) -> None:
        """End the workers and their processes; afterwards the name may be used again. May be repeated.

        With ``graceful`` each worker's ``close()`` runs first, unless a rank died, hangs or failed halfway.
        """
        if self._closed:
            return
        self._closed = True
        if graceful and not self._broken:
            self._close_workers()
        known = self.known_processes()
        is_served = self.session.watch.lost_server is None  # Ray would wait for a server that is gone.
        for actor in self.actors if is_served else ():
            ray.kill(actor)
        patience = _KILL_TIMEOUT_S if is_served and not self._broken else 0.0
        local = [(info.pid, info.started) for info in known.values() if info.node_id == self.session.local_node_id]
        for pid, started in process.wait_gone(local, patience):
            process.kill(pid, started)
        process.wait_gone(local, _KILL_TIMEOUT_S)
        for rank in self.lost_ranks:
            if rank in known and known[rank].node_id != self.session.local_node_id:
                self.session.watch.kill(known[rank])
        self.session.dismiss(self)

    def _close_workers(self) -> None:
        """Let the workers release what they hold, as long as all of them are there to do so."""
        closing = [actor.close.remote() for actor in self.actors]
        deadline = Deadline(_CLOSE_TIMEOUT_S, None)
        while closing and not deadline.is_over and not self._is_lost():
            _, closing = ray.wait(closing, num_returns=len(closing), timeout=deadline.left(_TICK_S))

    def _is_lost(self) -> bool:
        watch = self.session.watch
        return watch.lost_server is not None or watch.find([self]) is not None

    # ----------------------------------------------------------------- for handles
    def known_processes(self) -> dict[int, RankInfo]:
        """Return the processes that have reported so far, by rank; never blocks."""
        with self.lock:
            if self._reports:
                arrived, _ = ray.wait(list(self._reports), num_returns=len(self._reports), timeout=0)
                for ref in arrived:
                    self._take_report(ref, self._reports.pop(ref))
            return dict(self._processes)

    def _take_report(self, ref: Any, rank: int) -> None:
        try:
            self._processes[rank] = ray.get(ref, timeout=_KILL_TIMEOUT_S)
        except ray.exceptions.RayError:
            pass  # The call that waits for this rank raises it.

    def describe_rank(self, rank: int) -> RankInfo:
        """Return what is known of the process of a rank; pid 0 before it has reported."""
        node = self.seats[rank].node
        unknown = RankInfo(
            group=self.name, rank=rank, pid=0, node_id=node.node_id, node_ip=node.ip, node_name=node.label
        )
        return self.known_processes().get(rank, unknown)

    def unplaced_ranks(self) -> list[int]:
        """Return the ranks whose process has not started, as far as is known."""
        return sorted(set(range(self.size)) - self.known_processes().keys())

    def mark_broken(self) -> None:
        """Note that a rank is dead or hangs, so that closing does not wait for it."""
        self._broken = True

    def mark_lost(self, rank: int) -> None:
        """Note that the process of a rank is gone or frozen: it is no longer looked for."""
        self._broken = True
        self.lost_ranks.setdefault(rank, time.monotonic())

    def restart_rank(self, rank: int) -> bool:
        """Start a rank anew whose process is gone or frozen, and repeat its open calls; False when that may not be."""
        with self.lock:
            if self._restarts <= 0 or self._closed or self._ready.pending_ranks:
                return False
            self._restarts -= 1
            info = self.known_processes().get(rank)
            ray.kill(self.actors[rank])
            if info is not None:
                self._end_process(info)
            self._processes.pop(rank, None)
            logger.warning("%s is started anew; %d more are allowed.", info or self.describe_rank(rank), self._restarts)
            self.actors[rank] = self._launcher.start_again(rank)
            self._reports = {ref: other for ref, other in self._reports.items() if other != rank}
            self._reports[self.actors[rank].report.remote()] = rank
            for call in sorted(self._open_calls, key=lambda call: call.started):
                call.submit_again(rank)
            return True

    def _end_process(self, info: RankInfo) -> None:
        if info.node_id == self.session.local_node_id:
            process.kill(info.pid, info.started)
        else:
            self.session.watch.kill(info)
        self.session.watch.forget([info])


def _by_path(worker_class: str | type) -> str | type:
    """Send a class by its path, so that each worker imports its own; one of the driver's script travels by value."""
    if isinstance(worker_class, str) or worker_class.__module__ == "__main__":
        return worker_class
    return f"{worker_class.__module__}:{worker_class.__qualname__}"
