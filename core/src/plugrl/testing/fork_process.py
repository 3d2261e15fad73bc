"""What the server of :mod:`plugrl.testing.fork_server` does: import, fork at each request, report how forks end.

A fork tells its process id through the socket that came with the request, the server its exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for every request until the other end closes (None); in a fork, return the arguments of ``python``."""
    running: dict[int, socket.socket] = {}
    woken, wakes = os.pipe()
    watched: list[int | socket.socket] = [control, woken]
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report(running)
        if control not in ready:
            continue
        text, fds, _, _ = socket.recv_fds(control, 1 << 20, 64)
        if not text:
            break
        status = socket.socket(fileno=fds[0])
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (control, *running.values()):
                other.close()
            os.close(woken)
            os.close(wakes)
            return _become(json.loads(text), fds[1:], status)
        for number in fds[1:]:
            os.close(number)
        running[pid] = status
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


def _report(running: dict[int, socket.socket]) -> None:
    """Tell who asked for them how the processes that have ended did so."""
    for pid in list(running):
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as status, suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it
                status.send(str(os.waitstatus_to_exitcode(code)).encode())


def _become(request: dict[str, Any], received: list[int], status: socket.socket) -> list[str]:
    """Take over descriptors, session, environment, folder and import path; returns the arguments of ``python``."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the server may be killed before it can end us
    if request["session"]:
        os.setsid()
    with status:
        status.send(f"pid {os.getpid()}".encode())
    wanted = [0, 1, 2, *request["fds"]]
    above = max([*wanted, *received]) + 1
    # First out of the way: a number that is wanted may be that of another one as it was received.
    moved = [os.dup2(number, above + place) for place, number in enumerate(received)]
    for number in received:
        os.close(number)
    for source, number in zip(moved, wanted, strict=True):
        os.dup2(source, number)
        os.close(source)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment: dict[str, str] = request["env"]
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it is asked for once, and may be another here
    folder = str(request["cwd"])
    os.chdir(folder)
    given = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [folder, *given, *(part for part in sys.path[1:] if part not in inherited)]
    importlib.invalidate_caches()
    return list(request["arguments"])


def _exit_of(option: str, program: str, *arguments: str) -> int:
    """Run what the arguments name and return the exit code that Python would end with."""
    try:
        _run(option, program, *arguments)
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def _run(option: str, program: str, *arguments: str) -> None:
    """Do what ``python -m`` or ``python -c`` does."""
    sys.argv = ["-c" if option == "-c" else program, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), module.__dict__)


def _main(descriptor: str, *preload: str) -> None:
    for name in preload:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    gc.freeze()  # what is there stays there: a collection in a fork need not touch, and so copy, it
    arguments = _serve(socket.socket(fileno=int(descriptor)))
    if arguments is None:
        return
    code = _exit_of(*arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take every module of the server apart would take longer than most of what is run


if __name__ == "__main__":
    _main(*sys.argv[1:])
