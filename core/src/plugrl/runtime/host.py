"""The Ray actor around a worker: it makes the process ready, builds the worker and runs its methods.

Nothing heavy is imported here: the class of the worker, torch and the platform's SDK come in with :meth:`Host.prepare`,
after the environment of the process is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import inspect
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from plugrl.errors import PlugRLError
from plugrl.runtime import trace
from plugrl.runtime.answer import Answer
from plugrl.runtime.device_assignment import AssignedDevice, DeviceTaker
from plugrl.runtime.failure import Failure, RankInfo
from plugrl.runtime.process import started_at
from plugrl.runtime.pulse import Pulse
from plugrl.runtime.worker import Worker, WorkerContext

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase
    from plugrl.runtime.network import WorkerNetwork

STACKS_SIGNAL = signal.SIGUSR1
"""Makes a worker write the Python stacks of all its threads to its stderr."""
HEARTBEAT_S = 0.5
LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables of a launcher that started the driver. A worker has another rank, so libraries must not read them."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What all ranks of a group are built from: ``worker`` is ``"module:Class"``, or a class of the driver's script."""

    worker: str | type
    platform: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    restarts: bool = False
    """Whether a rank may be started anew by itself."""


class Host:
    """One process of a worker group. Its methods return a Failure instead of raising, so that nothing is lost."""

    def __init__(
        self,
        group: str,
        rank: int,
        node_ip: str,
        node_name: str = "",
        heartbeat_s: float = HEARTBEAT_S,
        own_variables: frozenset[str] = frozenset(),
    ):
        import ray

        faulthandler.enable()
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        # On Ctrl-C the terminal signals every process; only the driver decides what happens then.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _close_stdin()
        for name in set(LAUNCHER_VARIABLES) - own_variables:
            os.environ.pop(name, None)
        self._pulse = Pulse(heartbeat_s)
        self._runner: asyncio.Runner | None = None
        self._network: WorkerNetwork | None = None
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
            pulse=self._pulse.descriptor,
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
        self._pulse.phase("loading plugins and the worker's class")
        bootstrap.verify(context.node_name)
        self._class = _load_class(spec.worker)
        if spec.restarts and self._class.process_group and context.world_size > 1:
            raise PlugRLError(
                f"Worker group {context.group!r} cannot restart single ranks: its ranks form one process group. Give "
                "the class process_group = False, or launch the group again."
            )
        self._pulse.phase("taking its device")
        self._platform = _choose_platform(spec.platform)
        _limit_threads(context.num_threads)
        self._take_device(taker)
        self._pulse.phase("waiting for the other ranks")
        if context.rank or context.world_size == 1 or not self._class.process_group:
            return 0
        from plugrl.runtime.rendezvous import open_store

        self._store, port = open_store(context.node_ip, context.collective_timeout_s)
        return port

    def _take_device(self, taker: DeviceTaker) -> None:
        """Use the worker's device, and name it in every later report of a failure."""
        self._device = taker.take(self._platform)
        self._info = replace(self._info, device=self._device.name)

    def build(self, port: int | Failure, spec: WorkerSpec, context: WorkerContext) -> bool | Failure:
        """Build the worker, join the process group, call ``setup()``. ``port`` is what rank 0 prepared.

        Returns whether there is a process group.
        """
        if self._failure is not None:
            return self._failure
        if isinstance(port, Failure):
            self._failure = port
            return port
        try:
            self._build(spec, replace(context, master_port=port, device=self._device))
        except BaseException as error:
            return self._fail(error, "setup")
        finally:
            self._pulse.phase("idle")
        return bool(port)

    def _build(self, spec: WorkerSpec, context: WorkerContext) -> None:
        from plugrl.plugins import hooks

        assert self._class is not None
        worker = self._class.__new__(self._class)
        worker.context = context
        worker.platform = self._platform
        hooks.fire("on_worker_start", context=context)
        if context.access is not None:
            from plugrl.runtime.network import WorkerNetwork

            worker._network = self._network = WorkerNetwork(context, context.access, worker.platform)
        if context.master_port:
            from plugrl.runtime.rendezvous import join_store

            worker._store = self._store or join_store(
                context.master_address, context.master_port, context.collective_timeout_s
            )
            worker.init_process_group()
        self._pulse.phase("setup()")
        worker.__init__(*spec.args, **spec.kwargs)  # type: ignore[misc]
        worker.setup()
        self._worker = worker

    def call(
        self, method: str, common: tuple[tuple[Any, ...], dict[str, Any]], own: Any = None, number: int = 0
    ) -> Answer | Failure:
        """Run a method of the worker with the arguments common to all ranks and, after them, this rank's own.

        ``number`` is what the driver cancels the call by.
        """
        if self._failure is not None:
            return self._failure
        began = time.perf_counter()
        try:
            with self._pulse.running(number, f"{method}()"), self._marked(method):
                value = self._invoke(method, common, own)
                if inspect.iscoroutine(value):
                    value = self._await(value)
                elif inspect.isgenerator(value) or inspect.isasyncgen(value):
                    raise PlugRLError(f"{method}() gives its results one by one: call it with stream(), not execute().")
        except BaseException as error:
            return self._report(error, method)
        assert self._worker is not None
        timers = self._worker.take_timers()
        return Answer(value=value, seconds=time.perf_counter() - began, timers=timers)

    def stream(
        self, method: str, common: tuple[tuple[Any, ...], dict[str, Any]], own: Any = None, number: int = 0
    ) -> Iterator[Any]:
        """Run a generator method and give its items as they come; a Failure is the last one."""
        if self._failure is not None:
            yield self._failure
            return
        try:
            with self._pulse.running(number, f"{method}()"):
                items = self._invoke(method, common, own)
                if not inspect.isgenerator(items):
                    raise PlugRLError(f"{method}() is no generator method: call it with execute(), not stream().")
                yield from items
        except GeneratorExit:
            raise
        except BaseException as error:
            yield self._report(error, method)

    def _invoke(self, method: str, common: tuple[tuple[Any, ...], dict[str, Any]], own: Any) -> Any:
        args, kwargs = common
        own_args, own_kwargs = own or ((), {})
        return getattr(self._worker, method)(*args, *own_args, **{**kwargs, **own_kwargs})

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in this worker's event loop, which lives on between calls."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(coroutine)
        except BaseException:
            # What was interrupted may have left tasks behind; they end with their loop.
            self._runner.close()
            self._runner = None
            raise

    def _report(self, error: BaseException, method: str) -> Failure:
        """Describe an error for the driver, and write it to this rank's log: the driver shows the first cause alone."""
        failure = Failure.capture(error, self._info, method)
        with contextlib.suppress(OSError, ValueError):  # a full disk, a log that is closed
            print(f"{self._info} failed in {method}():\n{failure.traceback}", file=sys.stderr, flush=True)
        return failure

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
        self._pulse.phase("close()")
        if worker is not None:
            worker.close()
        if self._runner is not None:
            self._runner.close()
        if self._network is not None:
            self._network.close()
        self._store = None

    def _fail(self, error: BaseException, method: str) -> Failure:
        self._failure = self._report(error, method)
        return self._failure


def _close_stdin() -> None:
    """Let a hidden question of a library, or of a child process, fail at once instead of waiting for an answer."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


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
