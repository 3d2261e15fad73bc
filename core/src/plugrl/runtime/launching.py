"""Starting the ranks of a worker group: their devices, their processes, and what each is told of its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plugrl.platforms.devices import DeviceError, groups_per_device
from plugrl.runtime.device_assignment import assigned, check_free, check_mask_is_free, mask_of
from plugrl.runtime.host import LAUNCHER_VARIABLES, Host, WorkerSpec
from plugrl.runtime.nodes import Seat, assign_seats
from plugrl.runtime.placement.layout import CLUSTER
from plugrl.runtime.worker import WorkerContext
from plugrl.runtime.worker_environment import thread_variables

if TYPE_CHECKING:
    from plugrl.runtime.placement import ComponentPlacement
    from plugrl.runtime.session import RaySession

GROUPS_PER_DEVICE = 10
"""Worker groups that may share a device, where the platform lets processes share one: Ray counts 1/10 for each."""


class Launcher:
    """Starts the actors of one group; the arguments are those of :class:`plugrl.runtime.WorkerGroup`.

    ``generation`` is set before anything is started.
    """

    generation: int

    def __init__(
        self,
        session: RaySession,
        name: str,
        devices: Sequence[int],
        placement: ComponentPlacement | None,
        spec: WorkerSpec,
        num_threads: int | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self._session = session
        self._name = name
        self._placement = placement
        self.num_threads = session.config.threads_per_worker if num_threads is None else num_threads
        self.env = dict(env or {})
        check_mask_is_free(session.platform, self.env)
        self.seats = self._seats(devices)
        self.worker = spec
        self._spec: Any = None
        self._starts = [0] * len(devices)

    def start_all(self) -> list[Any]:
        """Start the process of each rank and return the actors by rank."""
        self._spec = ray.put(self.worker)
        return [self._start(rank) for rank in range(len(self.seats))]

    def build_all(self, actors: Sequence[Any]) -> dict[int, Any]:
        """Prepare all ranks at once, then build each with the port that rank 0 prepared; Ray passes it on."""
        contexts = [self._context(rank) for rank in range(len(self.seats))]
        ports = [actor.prepare.remote(self._spec, context) for actor, context in zip(actors, contexts, strict=True)]
        return {
            rank: actor.build.remote(ports[0], self._spec, context)
            for rank, (actor, context) in enumerate(zip(actors, contexts, strict=True))
        }

    def start_again(self, rank: int) -> Any:
        """Start and build a single rank, and return its actor; calls to it wait until it is built."""
        actor, context = self._start(rank), self._context(rank)
        actor.build.remote(actor.prepare.remote(self._spec, context), self._spec, context)
        return actor

    def _seats(self, devices: Sequence[int]) -> list[Seat]:
        """Return the seat of each rank. Raises DeviceError when a device is missing or held and cannot be shared."""
        session, platform = self._session, self._session.platform
        if max(devices) >= session.device_count and platform.ray_resource_name():
            raise DeviceError(session.shortage(max(devices) + 1))
        shared = not platform.ray_resource_name() or platform.supports_colocated_worker_groups()
        seats = assign_seats(devices, session.nodes, shared)
        if not shared:
            check_free(seats, session.open_groups(), platform)
        return seats

    def _start(self, rank: int) -> Any:
        session, seat = self._session, self.seats[rank]
        again = f"-{self._starts[rank]}" if self._starts[rank] else ""
        self._starts[rank] += 1
        options: dict[str, Any] = {
            "num_cpus": 0,
            "name": f"{self._name}.{self.generation}.{rank}{again}",
            "namespace": session.namespace,
            "max_restarts": 0,
            "max_task_retries": 0,
            **session.platform.ray_resource_options(self._device_share()),
        }
        env = dict(self.env)
        if self.num_threads != session.config.threads_per_worker:
            env = {**thread_variables(self.num_threads), **env}
        # Part of the environment that the process starts with: the SDK may be loaded by whatever is imported first.
        env |= mask_of(assigned(session.platform, seat))
        label = self._placement.processes[rank].node_group if self._placement else CLUSTER
        runtime_env = session.environments.runtime_env(label, session.nodes.index(seat.node), env)
        if runtime_env:
            options["runtime_env"] = runtime_env
        if len(session.nodes) > 1:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(seat.node.node_id, soft=False)
        own = frozenset(set(LAUNCHER_VARIABLES) & set(runtime_env.get("env_vars", {})))
        return (
            ray.remote(Host)
            .options(**options)
            .remote(self._name, rank, seat.node.ip, seat.node.label, session.config.heartbeat_s, own)
        )

    def _device_share(self) -> float:
        """Return the part of a device that Ray counts for one worker, 0 where it counts no devices."""
        platform = self._session.platform
        return 1 / groups_per_device(platform, GROUPS_PER_DEVICE) if platform.ray_resource_name() else 0

    def _context(self, rank: int) -> WorkerContext:
        session, seat = self._session, self.seats[rank]
        device = assigned(session.platform, seat)
        return WorkerContext(
            group=self._name,
            rank=rank,
            world_size=len(self.seats),
            local_rank=seat.local_rank,
            node_id=seat.node.node_id,
            node_ip=seat.node.ip,
            device_index=device.index,
            num_threads=self.num_threads,
            master_address=self.seats[0].node.ip,
            master_port=0,
            run_id=session.run_id,
            generation=self.generation,
            run_directory=str(session.run_directory),
            collective_timeout_s=session.config.step_timeout_s,
            node_name=seat.node.label,
            device=device,
            placement=self._placement.processes[rank] if self._placement else None,
            access=session.network.access,
        )
