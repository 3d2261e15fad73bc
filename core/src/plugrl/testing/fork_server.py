"""Python processes that begin with modules imported: forks of a server that has imported them once.

An interpreter with torch takes seconds to start, a fork milliseconds. What such a process runs is what
``python -m MODULE ...`` or ``python -c CODE ...`` would, with the same exit code, but for what Python reads when it
starts (``PYTHONHASHSEED`` and the like) and what the modules read when they are imported; at its end the functions of
:mod:`atexit` are called, and modules are not taken apart::

    with ForkServer("torch") as server:
        done = server.run("-m", "plugrl", "train", "run.yaml", cwd=folder)
        assert done.returncode == 0, done.stderr
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO

START_TIMEOUT_S = 120.0
"""Seconds for the imports of the server, which happen once."""


SHARED = ["torch"]
"""What the server of :func:`shared_server` imports, of it what is installed. A conftest adds what its tests need."""


class ForkServerError(RuntimeError):
    """The server did not start, or ended."""


class ForkedProcess:
    """A fork of the server: what ``subprocess.Popen`` tells of a process, as far as tests need it.

    ``returncode`` is None until :meth:`poll` or :meth:`wait` has seen the end, then as of Popen.
    """

    def __init__(self, pid: int, status: socket.socket, stdin: IO[bytes] | None = None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        """End the process at once unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended since, and the server says so in a moment
                os.kill(self.pid, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            text = self._status.recv(64)
            self.returncode = int(text) if text else -signal.SIGKILL  # the server is gone, and has taken all along
            self._status.close()
        return self.returncode


class ForkServer:
    """A server that imports ``preload`` when the first process is asked of it. Close it, or use it as a context.

    What is not installed is left out: whoever needs it will say so.
    """

    def __init__(self, *preload: str) -> None:
        self.preload = preload
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(
        self,
        *arguments: str,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> ForkedProcess:
        """Start a process. Arguments and keywords are those of ``python`` and Popen; ``env`` replaces the environment.

        ``stdin`` is DEVNULL or PIPE. What is passed by ``pass_fds`` has the same numbers there. Raises ForkServerError.
        """
        control = self._running()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), -1)
        out = 1 if stdout is None else stdout.fileno()
        err = 2 if stderr is None else stderr.fileno()
        request = {
            "arguments": arguments,
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "fds": list(pass_fds),
            "session": start_new_session,
        }
        fds = [theirs.fileno(), reading, out, err, *pass_fds]
        try:
            with theirs, suppress(BrokenPipeError, ConnectionResetError):  # then no answer comes
                socket.send_fds(control, [json.dumps(request).encode()], fds)
        finally:
            os.close(reading)
        answer = ours.recv(64) if select.select([ours], [], [], START_TIMEOUT_S)[0] else b""
        if not answer.startswith(b"pid "):
            said = self._last_words()
            self.close()
            ours.close()
            if writing >= 0:
                os.close(writing)
            raise ForkServerError(f"the fork server with {', '.join(self.preload)} gave no process: {said}")
        return ForkedProcess(int(answer[4:]), ours, os.fdopen(writing, "wb") if writing >= 0 else None)

    def run(
        self,
        *arguments: str,
        timeout: float,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a process to its end, as ``subprocess.run(..., capture_output=True, text=True)`` does."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(*arguments, cwd=cwd, env=env, stdout=out, stderr=err)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
                process.wait(START_TIMEOUT_S)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        return subprocess.CompletedProcess(arguments, code, *texts)

    def close(self) -> None:
        """End the server and every process that it has forked and that still runs."""
        if self._control is not None and self._server is not None:
            self._control.close()
            try:
                self._server.wait(10.0)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._log.close()
        self._control = self._server = None

    def _running(self) -> socket.socket:
        if self._server is not None and self._server.poll() is not None:
            self.close()  # something ended it; the next one serves as well
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._log = tempfile.TemporaryFile()
            with theirs:
                self._server = subprocess.Popen(
                    [sys.executable, "-m", "plugrl.testing.fork_process", str(theirs.fileno()), *self.preload],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._control = ours
        return self._control

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-2000:] or "it printed nothing"


@functools.cache
def shared_server(*preload: str) -> ForkServer:
    """Return the server of this process that imports ``preload`` (default: SHARED), which ends with this process."""
    server = ForkServer(*(preload or SHARED))
    atexit.register(server.close)
    return server
