"""The Ray actor around a worker: it makes the process ready, builds the worker and runs its methods.

Nothing heavy is imported here: the class of the worker, torch and the platform's SDK come in with :meth:`Host.prepare`,
after the environment of the process is complete.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from plugrl.errors import PlugRLError
from plugrl.runtime import trace
from plugrl.runtime.device_assignment import AssignedDevice, DeviceTaker
from plugrl.runtime.failure import Failure, RankInfo
from plugrl.runtime.process import started_at
from plugrl.runtime.worker import Worker, WorkerContext

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase

STACKS_SIGNAL = signal.SIGUSR1
"""Makes a worker write the Python stacks of all its threads to its stderr."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What all ranks of a group are built from: ``worker`` is ``"module:Class"``, or a class of the driver's script."""

    worker: str | type
    platform: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Host:
    """One process of a worker group. Its methods return a Failure instead of raising, so that nothing is lost."""

    def __init__(self, group: str, rank: int, node_ip: str, node_name: str = ""):
        import ray

        faulthandler.enable()
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        # On Ctrl-C the terminal signals every process; only the driver decides what happens then.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pid = os.getpid()
        self._info = RankInfo(
            group=group,
            rank=rank,
            pid=pid,
            node_id=ray.get_runtime_context().get_node_id(),
            node_ip=node_ip,
            started=started_at(pid),
            stderr_path=_stderr_path(),
            node_name=node_name,
        )
        self._worker: Worker | None = None
        self._class: type[Worker] | None = None
        self._store: Any = None
        self._failure: Failure | None = None
        self._device: AssignedDevice | None = None
        self._platform: PlatformBase

    def report(self) -> RankInfo:
        """Say which process this is."""
        return self._info

    def prepare(self, spec: WorkerSpec, context: WorkerContext) -> int | Failure:
        """Check the plugins, choose the platform and import the worker's class; rank 0 opens the rendezvous.

        Returns the port of the rendezvous, 0 where there is none.
        """
        try:
            return self._prepare(spec, context)
        except BaseException as error:
            return self._fail(error, "prepare")

    def _prepare(self, spec: WorkerSpec, context: WorkerContext) -> int:
        from plugrl.plugins import bootstrap

        taker = DeviceTaker(context.device or AssignedDevice(index=context.device_index))
        bootstrap.verify(context.node_name)
        self._class = _load_class(spec.worker)
        self._platform = _choose_platform(spec.platform)
        _limit_threads(context.num_threads)
        self._take_device(taker)
        if context.rank or context.world_size == 1 or not self._class.process_group:
            return 0
        from plugrl.runtime.rendezvous import open_store

        self._store, port = open_store(context.node_ip, context.collective_timeout_s)
        return port

    def _take_device(self, taker: DeviceTaker) -> None:
        """Use the worker's device, and name it in every later report of a failure."""
        self._device = taker.take(self._platform)
        self._info = replace(self._info, device=self._device.name)

    def build(self, port: int | Failure, spec: WorkerSpec, context: WorkerContext) -> None | Failure:
        """Build the worker, join the process group, call ``setup()``. ``port`` is what rank 0 prepared."""
        if self._failure is not None:
            return self._failure
        if isinstance(port, Failure):
            self._failure = port
            return port
        try:
            self._build(spec, replace(context, master_port=port, device=self._device))
        except BaseException as error:
            return self._fail(error, "setup")
        return None

    def _build(self, spec: WorkerSpec, context: WorkerContext) -> None:
        from plugrl.plugins import hooks

        assert self._class is not None
        worker = self._class.__new__(self._class)
        worker.context = context
        worker.platform = self._platform
        hooks.fire("on_worker_start", context=context)
        if context.master_port:
            from plugrl.runtime.rendezvous import join_store

            worker._store = self._store or join_store(
                context.master_address, context.master_port, context.collective_timeout_s
            )
            worker.init_process_group()
        worker.__init__(*spec.args, **spec.kwargs)  # type: ignore[misc]
        worker.setup()
        self._worker = worker

    def call(self, method: str, common: tuple[tuple[Any, ...], dict[str, Any]], own: Any = None) -> Any:
        """Run a method of the worker with the arguments common to all ranks and, after them, this rank's own."""
        if self._failure is not None:
            return self._failure
        try:
            args, kwargs = common
            own_args, own_kwargs = own or ((), {})
            with self._marked(method):
                return getattr(self._worker, method)(*args, *own_args, **{**kwargs, **own_kwargs})
        except BaseException as error:
            return Failure.capture(error, self._info, method)

    def trace_events(self) -> list[trace.Event]:
        """Hand over what this process recorded for the timeline, and forget it."""
        return trace.take()

    @contextmanager
    def _marked(self, method: str) -> Iterator[None]:
        """Show a call in the platform's profiler and in the timeline."""
        label = f"{self._info.group}.{method}"
        with self._platform.nvtx_range(label), trace.span(label):
            yield

    def ping(self) -> None:
        """Answer; queued behind a call that hangs, it fails when this process dies."""

    def close(self) -> None:
        """Let the worker release what it holds."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        self._store = None

    def _fail(self, error: BaseException, method: str) -> Failure:
        self._failure = Failure.capture(error, self._info, method)
        return self._failure


def _load_class(worker: str | type) -> type[Worker]:
    if isinstance(worker, str):
        module, _, name = worker.partition(":")
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    else:
        value = worker
    if not isinstance(value, type) or not issubclass(value, Worker):
        raise PlugRLError(f"{worker} is no subclass of plugrl.runtime.Worker.")
    return value


def _choose_platform(name: str) -> Any:
    from plugrl.platforms import get_platform

    return get_platform(name)


def _limit_threads(count: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def _stderr_path() -> str:
    try:
        path = os.readlink(f"/proc/self/fd/{sys.stderr.fileno()}")
    except (OSError, ValueError):
        return ""
    return path if os.path.isabs(path) else ""
