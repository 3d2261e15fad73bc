"""The process that imports what workers need, once, and forks a worker at each request.

It has one thread and never touches a device: the SDK of a platform is loaded in the forks, under the mask of each.
Where an import would break that, it forks nothing and workers start as usual.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.runtime import process
from plugrl.runtime.preload.start.worker import EARLY

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Variable that keeps torch from importing the extensions of vendors along with itself."""

RAY = "ray"
"""Not to be loaded either: its settings are those of the variables that it finds when it is imported."""

_PR_SET_PDEATHSIG = 1
_REQUEST_BYTES = 1 << 20
_REQUEST_S = 5.0


def serve(listener: socket.socket, control: int, early: Mapping[str, str], reason: str) -> list[str] | None:
    """Fork for every request until ``control`` closes (None); in a fork, return the worker's command line.

    ``early`` are the variables that were read already: who wants others gets no fork. ``reason`` is why nobody does.
    """
    listener.setblocking(False)
    while True:
        ready, _, _ = select.select([listener.fileno(), control], [], [])
        if control in ready:
            return None
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        with connection:
            connection.settimeout(_REQUEST_S)
            try:
                text, fds, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 8)
            except OSError:
                continue
            request = json.loads(text) if len(fds) == 3 else {}
            if answered(connection, request.get("early", {}), early, reason) and os.fork() == 0:
                listener.close()
                os.close(control)
                return become(request, fds, connection)
            for number in fds:
                os.close(number)


def answered(connection: socket.socket, wanted: Mapping[str, str], early: Mapping[str, str], reason: str) -> bool:
    """Tell who asks whether there will be a fork, and return it; there is none for one who does not wait any more."""
    if not reason:
        differing = sorted({name for name, _ in wanted.items() ^ early.items()})
        reason = ", ".join(differing)
    if reason:
        print(f"no fork: {reason}", file=sys.stderr, flush=True)
    try:
        connection.send(b"no" if reason else b"yes")
    except OSError:
        return False
    return not reason


def become(request: Mapping[str, Any], fds: Sequence[int], connection: socket.socket) -> list[str]:
    """Take over descriptors, session, variables and folder of a worker; returns its command line."""
    connection.close()
    if sys.platform == "linux":
        # The guard of a driver that was killed ends this process's parent, and with it all of them at once.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for number, source in enumerate(fds):
        os.dup2(source, number)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["env"])
    process.begin_with(request["env"], request["server"])
    tempfile.tempdir = None  # it is asked for once, and may be another here
    os.chdir(request["cwd"])
    draws = sys.modules.get("numpy.random")
    if draws is not None:
        draws.seed()  # every fork would draw the same; random and tempfile see to themselves
    return list(request["arguments"])


def run(path: str, *arguments: str) -> None:
    """Do what ``python PATH ARGUMENTS`` does."""
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(path)
    importlib.invalidate_caches()
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)


def preload(modules: Sequence[str], sdk: str) -> str:
    """Import the modules and return why this process may not be forked, empty when it may.

    A module that cannot be imported is left out: the worker that needs it will say so. ``sdk`` must stay away.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # the border to code of plugins
            print(f"{name} is not preloaded: {error!r}", file=sys.stderr)
    for name in (sdk, RAY):
        if name and name in sys.modules:
            return f"{name} was loaded along"
    tasks = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else []
    if len(tasks) != 1:
        return f"there are {len(tasks)} threads"
    return ""


def main(listener: str, control: str, sdk: str, *modules: str) -> None:
    """Import, serve, and in a fork run the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the driver decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that end leave nothing behind
    early = {name: value for name, value in os.environ.items() if EARLY.match(name)}
    os.environ[AUTOLOAD] = "0"
    reason = preload(modules, sdk)
    if reason:
        print(f"Workers start by themselves: {reason}.", file=sys.stderr, flush=True)
    gc.freeze()  # what is there stays there: a collection in a fork need not touch, and so copy, it
    command = serve(socket.socket(fileno=int(listener)), int(control), early, reason)
    if command is not None:
        run(*command)


if __name__ == "__main__":
    main(*sys.argv[1:])
