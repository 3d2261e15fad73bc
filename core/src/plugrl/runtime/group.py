"""A set of workers that runs one component: started together, called together, ended together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plugrl.errors import PlugRLError
from plugrl.platforms.devices import DeviceError, groups_per_device
from plugrl.runtime import process
from plugrl.runtime.device_assignment import assigned, check_free, check_mask_is_free, mask_of
from plugrl.runtime.failure import RankInfo
from plugrl.runtime.group_placement import place_group
from plugrl.runtime.handle import Handle
from plugrl.runtime.host import Host, WorkerSpec
from plugrl.runtime.nodes import Seat, assign_seats
from plugrl.runtime.placement.layout import CLUSTER
from plugrl.runtime.worker import WorkerContext
from plugrl.runtime.worker_environment import thread_variables

if TYPE_CHECKING:
    from plugrl.runtime.placement import ComponentPlacement, PlacementStrategy
    from plugrl.runtime.session import RaySession

GROUPS_PER_DEVICE = 10
"""Worker groups that may share a device, where the platform lets processes share one: Ray counts 1/10 for each."""
_CLOSE_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0


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
    ):
        if not name or not all(c.isalnum() or c in "-_." for c in name):
            raise PlugRLError(f"{name!r} is no name for a worker group: use letters, digits, '-', '_' and '.'.")
        self.session = session
        self.name = name
        self.devices, self.placement = place_group(session, name, devices, placement)
        self.start_timeout = session.config.start_timeout_s if start_timeout is None else start_timeout
        self._num_threads = session.config.threads_per_worker if num_threads is None else num_threads
        self._env = dict(env or {})
        check_mask_is_free(session.platform, self._env)
        self._processes: dict[int, RankInfo] = {}
        self._broken = False
        self._closed = False
        self.seats = self._seats()
        self.generation = session.admit(self)
        self.actors: list[Any] = [self._start(rank, seat) for rank, seat in enumerate(self.seats)]
        self._reports: dict[Any, int] = {actor.report.remote(): rank for rank, actor in enumerate(self.actors)}
        spec = WorkerSpec(
            worker=_by_path(worker_class),
            platform=session.platform_name,
            args=tuple(args),
            kwargs=dict(kwargs or {}),
        )
        self._ready = self._build(spec)

    # ----------------------------------------------------------------- use
    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    def wait_ready(self, timeout: float | None = None) -> WorkerGroup:
        """Wait until every rank has run its ``setup()`` and return the group.

        Raises what :meth:`plugrl.runtime.handle.Handle.wait` does; a group that failed is closed.
        """
        try:
            self._ready.wait(self.start_timeout if timeout is None else timeout)
        except Exception:
            self.close(graceful=False)
            raise
        return self

    @property
    def ready(self) -> Handle:
        """The handle of the start, to wait for several groups at once with :func:`plugrl.runtime.wait_all`."""
        return self._ready

    def execute(
        self,
        method: str,
        *args: Any,
        ranks: Sequence[int] | None = None,
        per_rank: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
        **kwargs: Any,
    ) -> Handle:
        """Call a method of the workers and return at once.

        Args:
            method: name of a method of the worker class.
            ranks: the ranks to call, all when omitted; results come in this order.
            per_rank: ``(args, kwargs)`` for each called rank, which follow (and override) the common ones.

        Calls of one rank run one after the other, in the order they were made.
        """
        if self._closed:
            raise PlugRLError(f"Worker group {self.name!r} is closed.")
        chosen = tuple(range(self.size)) if ranks is None else tuple(ranks)
        if per_rank is not None and len(per_rank) != len(chosen):
            raise PlugRLError(f"{len(per_rank)} argument sets for {len(chosen)} ranks of worker group {self.name!r}.")
        common: Any = (args, kwargs)
        if len(chosen) > 1 and (args or kwargs):
            common = ray.put(common)
        own = [None] * len(chosen) if per_rank is None else [(tuple(a), dict(k)) for a, k in per_rank]
        refs = {
            rank: self.actors[rank].call.remote(method, common, mine) for rank, mine in zip(chosen, own, strict=True)
        }
        return Handle(self, method, refs, self.session.config.step_timeout_s)

    def close(self, *, graceful: bool = True) -> None:
        """End the workers and their processes; afterwards the name may be used again. May be repeated.

        With ``graceful`` each worker's ``close()`` runs first, unless a rank died, hangs or failed halfway.
        """
        if self._closed:
            return
        self._closed = True
        if graceful and not self._broken:
            closing = [actor.close.remote() for actor in self.actors]
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT_S)
        known = self.known_processes()
        for actor in self.actors:
            ray.kill(actor)
        local = [(info.pid, info.started) for info in known.values() if info.node_id == self.session.local_node_id]
        for pid, started in process.wait_gone(local, _KILL_TIMEOUT_S):
            process.kill(pid, started)
        self.session.dismiss(self)

    # ----------------------------------------------------------------- for handles
    def known_processes(self) -> dict[int, RankInfo]:
        """Return the processes that have reported so far, by rank; never blocks."""
        if self._reports:
            arrived, _ = ray.wait(list(self._reports), num_returns=len(self._reports), timeout=0)
            for ref in arrived:
                rank = self._reports.pop(ref)
                try:
                    self._processes[rank] = ray.get(ref, timeout=_KILL_TIMEOUT_S)
                except ray.exceptions.RayError:
                    continue  # The call that waits for this rank raises it.
        return self._processes

    def describe_rank(self, rank: int) -> RankInfo:
        """Return what is known of the process of a rank; pid 0 before it has reported."""
        seat = self.seats[rank]
        node = {"node_id": seat.node.node_id, "node_ip": seat.node.ip, "node_name": seat.node.label}
        return self.known_processes().get(rank, RankInfo(group=self.name, rank=rank, pid=0, **node))

    def unplaced_ranks(self) -> list[int]:
        """Return the ranks whose process has not started, as far as is known."""
        return sorted(set(range(self.size)) - self.known_processes().keys())

    def mark_broken(self) -> None:
        """Note that a rank is dead or hangs, so that closing does not wait for it."""
        self._broken = True

    # ----------------------------------------------------------------- starting
    def _seats(self) -> list[Seat]:
        """Return the seat of each rank. Raises DeviceError when a device is missing or held and cannot be shared."""
        session, platform = self.session, self.session.platform
        if max(self.devices) >= session.device_count and platform.ray_resource_name():
            raise DeviceError(session.shortage(max(self.devices) + 1))
        shared = not platform.ray_resource_name() or platform.supports_colocated_worker_groups()
        seats = assign_seats(self.devices, session.nodes, shared)
        if not shared:
            check_free(seats, session.open_groups(), platform)
        return seats

    def _start(self, rank: int, seat: Seat) -> Any:
        session = self.session
        options: dict[str, Any] = {
            "num_cpus": 0,
            "name": f"{self.name}.{self.generation}.{rank}",
            "namespace": session.namespace,
            "max_restarts": 0,
            "max_task_retries": 0,
            **session.platform.ray_resource_options(self._device_share()),
        }
        env = dict(self._env)
        if self._num_threads != session.config.threads_per_worker:
            env = {**thread_variables(self._num_threads), **env}
        # Part of the environment that the process starts with: the SDK may be loaded by whatever is imported first.
        env |= mask_of(assigned(session.platform, seat))
        label = self.placement.processes[rank].node_group if self.placement else CLUSTER
        runtime_env = session.environments.runtime_env(label, session.nodes.index(seat.node), env)
        if runtime_env:
            options["runtime_env"] = runtime_env
        if len(session.nodes) > 1:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(seat.node.node_id, soft=False)
        return ray.remote(Host).options(**options).remote(self.name, rank, seat.node.ip, seat.node.label)

    def _device_share(self) -> float:
        """Return the part of a device that Ray counts for one worker, 0 where it counts no devices."""
        platform = self.session.platform
        return 1 / groups_per_device(platform, GROUPS_PER_DEVICE) if platform.ray_resource_name() else 0

    def _build(self, spec: WorkerSpec) -> Handle:
        """Prepare all ranks at once, then build each with the port that rank 0 prepared; Ray passes it on."""
        shared = ray.put(spec)
        contexts = [self._context(rank, seat) for rank, seat in enumerate(self.seats)]
        ports = [actor.prepare.remote(shared, context) for actor, context in zip(self.actors, contexts, strict=True)]
        refs = {
            rank: actor.build.remote(ports[0], shared, context)
            for rank, (actor, context) in enumerate(zip(self.actors, contexts, strict=True))
        }
        return Handle(self, "setup", refs, self.start_timeout)

    def _context(self, rank: int, seat: Seat) -> WorkerContext:
        session = self.session
        device = assigned(session.platform, seat)
        return WorkerContext(
            group=self.name,
            rank=rank,
            world_size=self.size,
            local_rank=seat.local_rank,
            node_id=seat.node.node_id,
            node_ip=seat.node.ip,
            device_index=device.index,
            num_threads=self._num_threads,
            master_address=self.seats[0].node.ip,
            master_port=0,
            run_id=session.run_id,
            generation=self.generation,
            run_directory=str(session.run_directory),
            collective_timeout_s=session.config.step_timeout_s,
            node_name=seat.node.label,
            device=device,
            placement=self.placement.processes[rank] if self.placement else None,
        )


def _by_path(worker_class: str | type) -> str | type:
    """Send a class by its path, so that each worker imports its own; one of the driver's script travels by value."""
    if isinstance(worker_class, str) or worker_class.__module__ == "__main__":
        return worker_class
    return f"{worker_class.__module__}:{worker_class.__qualname__}"
