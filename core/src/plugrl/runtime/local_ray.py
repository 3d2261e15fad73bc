"""Start and stop the local Ray: quickly, quietly, and on the loopback interface alone.

Ray offers no setting for some of this, so a few of its private functions are replaced while it starts. Each one is
looked up first: a Ray that has it no longer starts as it likes, slower but all the same.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plugrl.errors import PlugRLError
from plugrl.runtime import process
from plugrl.runtime.preload.start import worker as start

if TYPE_CHECKING:
    from plugrl.runtime.preload import PreloadedProcess

LOOPBACK = "127.0.0.1"
# Read when ray is imported, and inherited by the processes that it starts.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Written for other systems, but the one switch that keeps Ray from replacing loopback by an outside address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_enable_metrics_collection": "0",
    # The present name of this behaviour, chosen here so that Ray does not warn of its change.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# A worker started ahead of time has not our environment and is never used. Ray's workers are nice to other processes,
# ours are the work that the machine is for. Memory of the object store that /dev/shm has no room for when it is first
# touched ends Ray's server, and that ends the driver without a word: it is taken at the start, or elsewhere.
SYSTEM_CONFIG = {"prestart_worker_first_driver": False, "worker_niceness": 0, "preallocate_plasma_memory": True}
_CONNECT_S = 10.0
_NONE = object()
_quiet = contextlib.ExitStack()
logger = logging.getLogger(__name__)


def start_local(
    *,
    runtime_env: Mapping[str, Any],
    namespace: str,
    resources: Mapping[str, float],
    store_bytes: int,
    dashboard: bool,
    preloaded: PreloadedProcess | None = None,
) -> None:
    """Start Ray's processes on this machine and connect to them; they end with this process at the latest.

    ``RAY_ADDRESS`` and the address that ``ray start`` leaves behind are ignored. Workers are forks of ``preloaded``
    where there is one.
    """
    counted = dict(resources)
    with _environment(_ENVIRONMENT):
        import ray

        with (
            _lean_head(dashboard),
            _light_workers(preloaded),
            _one_message("Ray did not start on this machine"),
            _termination_kept(),
        ):
            ray.init(
                address="local",
                num_cpus=max(4, os.cpu_count() or 1),
                # Ray's own resource has its own argument, and refuses to be named in the other.
                num_gpus=counted.pop("GPU", None),
                resources=counted or None,
                object_store_memory=store_bytes,
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                namespace=namespace,
                runtime_env=dict(runtime_env),
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
                _system_config=SYSTEM_CONFIG,
            )
    _redirect_notices()


def join(address: str, *, runtime_env: Mapping[str, Any], namespace: str) -> None:
    """Connect to the Ray cluster at ``address``; one on the loopback interface is joined there and nowhere else."""
    import ray
    from ray._private import ray_constants

    problem = f"cluster.ray_address: the Ray at {address} cannot be joined"
    _check_answers(address, problem)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_message(problem))
        stack.enter_context(_termination_kept())
        if address.startswith((f"{LOOPBACK}:", "localhost:")):
            # Ray would look for it at this machine's outside address.
            stack.enter_context(_replaced(ray_constants, "ENABLE_RAY_CLUSTER", False))
        ray.init(
            address=address,
            namespace=namespace,
            runtime_env=dict(runtime_env),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    _redirect_notices()


def _check_answers(address: str, problem: str) -> None:
    """Raise PlugRLError when nothing listens at ``HOST:PORT``; Ray would try for minutes before it said so."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal():
        return  # "auto" and addresses of other kinds, which Ray alone understands
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise PlugRLError(f"{problem}: nothing answers there ({error}).") from error


@contextlib.contextmanager
def _one_message(problem: str) -> Iterator[None]:
    """Raise what Ray raises, which may be a bare Exception, as a PlugRLError of one line."""
    try:
        yield
    except Exception as error:  # the border to Ray
        raise PlugRLError(f"{problem}: {' '.join(str(error).split())}") from error


@contextlib.contextmanager
def _termination_kept() -> Iterator[None]:
    """Keep this process's answer to SIGTERM, which Ray replaces twice.

    Its handler in Python ends the process without our clean-up. Below Python it lets a crash handler have the signal
    first, which prints a stack and aborts the process three seconds later, in the middle of the clean-up.
    """
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before if callable(before) else signal.getsignal(signal.SIGTERM))


def stop() -> None:
    """Disconnect; a Ray that this process started ends, and is waited for."""
    import ray

    _quiet.close()
    known = servers()
    if not all(process.is_alive(pid, started) for _, pid, started in known):
        for _, pid, started in known:  # One that is asked to end would wait for the one that is gone.
            process.kill(pid, started)
    if "wait_for_processes" in inspect.signature(ray.shutdown).parameters:
        ray.shutdown(wait_for_processes=True)
    else:
        ray.shutdown()


def servers() -> list[tuple[str, int, str]]:
    """Return name, pid and start time of Ray's servers that this process has started; without them nothing goes on."""
    from ray._private import worker

    started: dict[str, list[Any]] = getattr(worker._global_node, "all_processes", {})
    pids = [(name, item.process.pid) for name in ("gcs_server", "raylet") for item in started.get(name, ())]
    return [(name, pid, process.started_at(pid)) for name, pid in pids]


def _redirect_notices() -> None:
    """Log what Ray would print in the middle of the driver's output; deaths of workers are raised as typed errors."""
    from ray._private import worker

    def log(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        logger.info("Ray: %s", " ".join(map(str, data.get("lines", ()))))

    _quiet.enter_context(_replaced(worker, "print_to_stdstream", log))


@contextlib.contextmanager
def lean_cluster() -> Iterator[None]:
    """Start nodes in this block as :func:`start_local` starts its one: quiet, and without what tests do not use."""
    with _environment(_ENVIRONMENT), _lean_head(dashboard=False):
        yield


@contextlib.contextmanager
def _lean_head(dashboard: bool) -> Iterator[None]:
    """Leave out what a local run without dashboard has no use for: API server, autoscaler and log forwarding.

    They are four Python processes, of which ``ray.init`` waits for one: more than half of its time.
    """
    from ray._private import node, ray_constants, services, utils

    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(ray_constants, "ENABLE_RAY_CLUSTER", False))
        if not dashboard:
            unneeded = ImportError("not needed")
            stack.enter_context(_replaced(services, "start_api_server", lambda *args, **kwargs: ("", None)))
            stack.enter_context(_replaced(node.Node, "start_monitor", lambda self: None))
            stack.enter_context(_replaced(node.Node, "start_log_monitor", lambda self: None))
            stack.enter_context(_replaced(utils, "get_dashboard_dependency_error", lambda: unneeded))
        yield


@contextlib.contextmanager
def _light_workers(preloaded: PreloadedProcess | None) -> Iterator[None]:
    """Start workers without Ray's script for that, which imports Ray to start another interpreter that does it again.

    Where the name of the script is no longer a constant, workers start as Ray likes.
    """
    from ray._private import ray_constants, workers

    name = getattr(ray_constants, "SETUP_WORKER_FILENAME", None)
    if name is None:
        yield
        return
    own = os.path.join(os.path.dirname(os.path.abspath(workers.__file__)), name)
    # The name is joined to a folder, which an absolute path replaces.
    variables = {start.RAYS_OWN: own, start.ADDRESS: str(preloaded.address) if preloaded is not None else ""}
    with _environment(variables), _replaced(ray_constants, "SETUP_WORKER_FILENAME", os.path.abspath(start.__file__)):
        yield


@contextlib.contextmanager
def _replaced(owner: ModuleType | type, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name, _NONE)
    if before is _NONE:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while; those that the user has set stay as they are."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
