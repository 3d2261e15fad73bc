"""The Ray session of a run: started or joined, the plugins in every worker, and gone without a trace afterwards."""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.config.schema import ClusterConfig
from plugrl.errors import PlugRLError, UserError
from plugrl.platforms.devices import DeviceError
from plugrl.runtime import local_ray, process
from plugrl.runtime.guard import Guard, ray_processes
from plugrl.runtime.rundir import create_run_directory, remove_run_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plugrl.platforms.base import PlatformBase
    from plugrl.plugins.ledger import Ledger
    from plugrl.runtime.directory import Directory
    from plugrl.runtime.failure import RankInfo
    from plugrl.runtime.group import WorkerGroup
    from plugrl.runtime.liveness import Watch
    from plugrl.runtime.network import RunNetwork
    from plugrl.runtime.nodes import NodeSlots
    from plugrl.runtime.peers import Peers
    from plugrl.runtime.placement import Layout
    from plugrl.runtime.preload import PreloadedProcess
    from plugrl.runtime.process_environment import ProcessEnvironments

T = TypeVar("T")

SETUP_HOOK = "plugrl.plugins.bootstrap.setup"
STORE_BYTES = 256 * 2**20
_NOT_STARTED = "The Ray session is not started: use `with RaySession(...) as session:`."


class RaySession:
    """Ray for one run; use it as a context manager.

    Without ``cluster.ray_address`` a local Ray is started, which listens on loopback alone; no other one is ever
    joined. Every name of the run (actors, namespaces, sockets) holds ``run_id``, so runs in one cluster never meet.
    Leaving the block, however it is left, ends all groups and processes of the run.

    Args:
        cluster: the configuration's ``cluster`` section.
        ledger: the driver's plugins, which all workers must have too; loaded when omitted.
        platform: registered name of the platform; chosen as everywhere when omitted.
        env: variables that every worker gets.
        store_bytes: size of the local Ray's object store.
        preload: names of modules that workers will import, beside those that all import: with
            ``cluster.preload_workers`` a local Ray's workers begin with them.
    """

    def __init__(
        self,
        cluster: ClusterConfig | None = None,
        ledger: Ledger | None = None,
        *,
        platform: str | None = None,
        env: Mapping[str, str] | None = None,
        store_bytes: int = STORE_BYTES,
        preload: Iterable[str] = (),
    ):
        self.config = cluster or ClusterConfig()
        self.run_id = secrets.token_hex(4)
        self._ledger = ledger
        self._platform_name = platform
        self._env = dict(env or {})
        self._store_bytes = store_bytes
        self._modules = tuple(preload)
        self._preloaded: PreloadedProcess | None = None
        self._groups: dict[str, WorkerGroup] = {}
        self._beside: list[WorkerGroup] = []
        """Groups that are to take the place of one with their name, or have lost it."""
        self._generations: dict[str, int] = {}
        self._started = False
        self.platform: PlatformBase
        self.nodes: list[NodeSlots] = []
        self.environments: ProcessEnvironments
        self.local_node_id = ""
        self.run_directory = Path()
        self.watch: Watch
        self._guard: Guard | None = None
        self._network: RunNetwork | None = None
        self._kept: list[Any] = []

    # ----------------------------------------------------------------- life
    def start(self) -> RaySession:
        """Start or join Ray. Raises UserError when this process is connected to one already."""
        import ray

        if ray.is_initialized():
            raise UserError("This process is connected to a Ray already; leave it with ray.shutdown() first.")
        self._choose_platform()
        self.run_directory = create_run_directory(self.run_id)
        atexit.register(self.shutdown)
        self._started = True
        try:
            self._connect()
        except BaseException:
            self.shutdown()
            raise
        return self

    def shutdown(self, *, graceful: bool = False) -> None:
        """End all groups, leave Ray (and end it, if it was started here) and remove the run's files; may be repeated.

        With ``graceful`` the workers may release what they hold first; without, they are killed, since they may hang.
        """
        if not self._started:
            return
        self._started = False
        atexit.unregister(self.shutdown)
        with _signals_held_back():
            try:
                for group in self.open_groups():
                    group.close(graceful=graceful)
                self._end_kept()
            finally:
                network, self._network = self._network, None
                if network is not None:
                    network.stop()
                local_ray.stop()
                if self._preloaded is not None:
                    self._preloaded.stop()
                remove_run_directory(self.run_directory)
                if self._guard is not None:
                    self._guard.stop()

    def __enter__(self) -> RaySession:
        return self if self._started else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(graceful=kind is None)
        stop = error.__cause__ if isinstance(error, SystemError) else None
        if stop is not None and not isinstance(stop, Exception):
            # A signal handler raised it while Ray waited, which lets through nothing but KeyboardInterrupt.
            raise stop

    # ----------------------------------------------------------------- views
    @property
    def platform_name(self) -> str:
        """Registered name of the platform that driver and workers run on."""
        assert self._platform_name is not None
        return self._platform_name

    @property
    def is_local(self) -> bool:
        """Whether this session started its own Ray."""
        return self.config.ray_address is None

    @property
    def device_count(self) -> int:
        """Number of devices of all nodes."""
        return sum(node.devices for node in self.nodes)

    @property
    def layout(self) -> Layout:
        """The nodes and node groups, for placements."""
        return self.environments.layout

    @property
    def namespace(self) -> str:
        """Ray namespace of this run."""
        return f"plugrl-{self.run_id}"

    def open_groups(self) -> list[WorkerGroup]:
        """Return the groups that are not closed: those with a name, then those beside them while they change."""
        return [*self._groups.values(), *self._beside]

    def group(self, name: str) -> WorkerGroup | None:
        """Return the open group that a name stands for, None when there is none."""
        return self._groups.get(name)

    def call_on_nodes(self, function: Callable[..., T], *args: Any) -> list[T]:
        """Call ``function(node_ip, *args)`` once on every node, outside all groups, and return the results by node.

        ``function`` is importable and returns what went wrong instead of raising. Raises PlugRLError when a node does
        not answer within ``cluster.start_timeout_s``.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = ray.remote(function)
        refs = [
            remote.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
            ).remote(node.ip, *args)
            for node in self.nodes
        ]
        try:
            return list(ray.get(refs, timeout=self.config.start_timeout_s))
        except ray.exceptions.GetTimeoutError as error:
            raise PlugRLError(
                f"Not every node of the cluster answered within {self.config.start_timeout_s:g} s."
            ) from error

    def shortage(self, wanted: int) -> str:
        """Explain why ``wanted`` devices are not to be had: a table of the nodes, and what to do."""
        from plugrl.runtime.shortage import describe_shortage

        return describe_shortage(self, wanted)

    # ----------------------------------------------------------------- for worker groups
    def admit(self, group: WorkerGroup, replaces: WorkerGroup | None = None) -> int:
        """Take up a group and return its generation; raises PlugRLError while another one has the name.

        One that ``replaces`` the group with its name stands beside it until :meth:`promote`.
        """
        if not self._started:
            raise PlugRLError(_NOT_STARTED)
        if self._groups.get(group.name) is not replaces:
            raise PlugRLError(
                f"A worker group {group.name!r} is running already; close it first."
                if replaces is None
                else f"Worker group {group.name!r} is closed, so nothing can take its place."
            )
        if any(other.name == group.name for other in self._beside):
            raise PlugRLError(f"Worker group {group.name!r} is being replaced already.")
        if replaces is None:
            self._groups[group.name] = group
        else:
            self._beside.append(group)
        generation = self._generations.get(group.name, 0)
        self._generations[group.name] = generation + 1
        return generation

    def promote(self, group: WorkerGroup) -> None:
        """Let a group have the name of the one that it stands beside, in one assignment."""
        old, self._groups[group.name] = self._groups[group.name], group
        self._beside = [*(other for other in self._beside if other is not group), old]
        self.network.add(group)

    @property
    def network(self) -> RunNetwork:
        """Directory, endpoint and secret of the run. Raises PlugRLError when the session is not started."""
        if self._network is None:
            raise PlugRLError(_NOT_STARTED)
        return self._network

    @property
    def directory(self) -> Directory:
        """Names of the run that every process may publish and look up."""
        return self.network.directory

    @property
    def peers(self) -> Peers:
        """The workers of all groups, which may be sent to and received from as they do among themselves."""
        return self.network.peers

    def keep(self, actor: Any) -> None:
        """End an actor that serves the whole run with the session."""
        self._kept.append(actor)

    def _end_kept(self) -> None:
        import ray

        kept, self._kept = self._kept, []
        if kept and self.watch.lost_server is None:
            for actor in kept:
                ray.kill(actor)

    def dismiss(self, group: WorkerGroup) -> None:
        """Forget a closed group, so that its name may be used again."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
        self._beside = [other for other in self._beside if other is not group]
        if self._network is not None:
            self._network.remove(group)
        self.watch.forget(list(group.known_processes().values()))

    def check_alive(self) -> None:
        """Raise WorkerDied or WorkerFrozen when a worker of any open group with ``on_error="raise"`` is gone or frozen.

        ClusterLost when a server of the local Ray is gone. Takes microseconds: every wait of the driver asks a few
        times a second.
        """
        from plugrl.runtime.liveness import raise_if_lost

        raise_if_lost([group for group in self.open_groups() if group.on_error == "raise"], self.watch)

    def is_running(self, info: RankInfo) -> bool:
        """Whether a worker's process runs; one on another node does until its node has said that it does not."""
        if info.node_id != self.local_node_id:
            return self.watch.look(info).state != "dead"
        return process.is_alive(info.pid, info.started)

    # ----------------------------------------------------------------- starting
    def _choose_platform(self) -> None:
        from plugrl.platforms import get_platform
        from plugrl.platforms.selection import current_selection
        from plugrl.plugins import load_plugins

        self._ledger = self._ledger or load_plugins()
        # A driver beside a cluster needs no device of its own.
        self.platform = get_platform(self._platform_name, allow_unavailable=not self.is_local)
        selection = current_selection()
        assert selection is not None
        self._platform_name = selection.platform_name

    def _connect(self) -> None:
        import ray

        from plugrl.runtime.cluster_start import find_nodes
        from plugrl.runtime.liveness import Watch
        from plugrl.runtime.network import RunNetwork
        from plugrl.runtime.preload import PreloadedProcess, sdk_of
        from plugrl.runtime.worker_environment import worker_environment

        assert self._ledger is not None
        env = worker_environment(self.platform, self.platform_name, self.config, self._ledger, self._env)
        runtime_env = {"env_vars": env, "worker_process_setup_hook": SETUP_HOOK}
        if self.config.ray_address is None:
            if self.config.preload_workers and self.platform.preloads_workers():
                self._preloaded = PreloadedProcess(self.run_directory, env, self._modules, sdk_of(self.platform))
            local_ray.start_local(
                runtime_env=runtime_env,
                namespace=self.namespace,
                resources=self._local_resources(),
                store_bytes=self._store_bytes,
                dashboard=self.config.dashboard,
                preloaded=self._preloaded,
            )
            helpers = [self._preloaded.pid] if self._preloaded is not None else []
            self._guard = Guard(self.run_directory, [*ray_processes(os.path.dirname(ray.__file__)), *helpers])
        else:
            local_ray.join(self.config.ray_address, runtime_env=runtime_env, namespace=self.namespace)
        self.local_node_id = ray.get_runtime_context().get_node_id()
        self.watch = Watch(self.local_node_id, self.config, local_ray.servers() if self.is_local else ())
        self.nodes, self.environments = find_nodes(self, env)
        if self.platform.ray_resource_name() and not self.device_count:
            raise DeviceError(self.shortage(1))
        self._network = RunNetwork(self)

    def _local_resources(self) -> dict[str, float]:
        from plugrl.platforms.visible import visible_ids

        name = self.platform.ray_resource_name()
        return {name: float(len(visible_ids(self.platform, self.platform_name)))} if name else {}


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let nobody interrupt the clean-up, which takes seconds; signals can only be set in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
