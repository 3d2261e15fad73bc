"""One simulator process as its parent sees it: started, asked, watched, and ended with everything it started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from plugrl import errors
from plugrl.envs.config import EnvParams
from plugrl.envs.process.memory import SharedArrays
from plugrl.envs.process.messages import Close, Hello, Raised, Ready, Refused, Wire
from plugrl.errors import PlugRLError, UserError

_TAIL_BYTES = 3000
_LOG_LIMIT = 16 * 2**20
_CLOSE_S = 5.0
_KILL_S = 20.0
_STACKS_S = 0.3
_PROGRAM = "import sys; from plugrl.envs.process.child import main; main(sys.argv[1:])"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class SimulatorLost(PlugRLError):
    """A simulator process died, hung or raised; the text says how, with the end of its log."""


class Simulator:
    """A process that runs ``build(params)``.

    Args:
        name: how messages call it.
        build: a class or a function at the top of a module.
        environment: variables laid over those of this process.
    """

    def __init__(self, name: str, build: Callable[[Any], Any], params: EnvParams,
                 environment: Mapping[str, str]) -> None:  # fmt: skip
        self.name = name
        recipe = Hello(tuple(sys.path), _recipe(build, params))
        self.memory = SharedArrays()
        self._owner = os.getpid()
        self._log = tempfile.TemporaryFile()
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # so that it can be cut while it is written
        ours, theirs = socket.socketpair()
        watched, self._lifeline = os.pipe()
        ends = (theirs.fileno(), self.memory.descriptor, watched)
        self._wire = Wire(ours, self.is_alive)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, ends)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ, **environment},
                pass_fds=ends,
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(watched)
        self._waits_for = ""
        self.send(recipe, "to start")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    # ----------------------------------------------------------------- asking
    def send(self, message: Any, what: str, timeout_s: float = 30.0) -> None:
        """Send a message; ``what`` says what the answer means. Raises SimulatorLost."""
        self._waits_for = what
        try:
            self._wire.send(message, timeout_s)
        except OSError as error:
            raise self._lost(f"takes no messages ({errors.one_line(error)})") from error

    def receive(self, timeout_s: float) -> Any:
        """Return the answer to the last message. Raises SimulatorLost, or the UserError that it was refused with."""
        self._bound_log()
        try:
            answer = self._wire.receive(timeout_s)
        except TimeoutError as error:
            self._ask_for_stacks()
            raise self._lost(f"did not answer within {timeout_s:g} s ({self._waits_for})", gone=False) from error
        except (EOFError, OSError) as error:
            raise self._lost(f"ended ({self._waits_for})") from error
        if isinstance(answer, Refused):
            kind = getattr(errors, answer.kind, UserError)
            raise kind(answer.text)
        if isinstance(answer, Raised):
            raise self._lost(f"raised {answer.text} ({self._waits_for})\n{answer.traceback.rstrip()}", gone=False)
        return answer

    def ready(self, timeout_s: float) -> Ready:
        """Return what was built, when it is."""
        answer = self.receive(timeout_s)
        assert isinstance(answer, Ready)
        return answer

    # ----------------------------------------------------------------- what happened
    def _lost(self, how: str, gone: bool = True) -> SimulatorLost:
        tail = self._tail()
        told = f"\nThe end of its output:\n{tail}" if tail else ""
        return SimulatorLost(f"{self.name} (pid {self.pid}) {how}{self._exit() if gone else ''}{told}")

    def _exit(self) -> str:
        try:  # its end is known a moment after its socket closed
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        if code >= 0:
            return f"; exit code {code}"
        known = {item.value: item.name for item in signal.Signals}
        return f"; killed by {known.get(-code, f'signal {-code}')}"

    def _ask_for_stacks(self) -> None:
        """Have the process write down where it hangs, if it can."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(_STACKS_S)

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        data = os.pread(self._log.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
        return data.decode(errors="replace").strip()

    def _bound_log(self) -> None:
        if os.fstat(self._log.fileno()).st_size > _LOG_LIMIT:
            os.ftruncate(self._log.fileno(), 0)

    # ----------------------------------------------------------------- the end
    def ask_to_end(self) -> None:
        """Ask the process to close its environment and end; :meth:`end` waits for it."""
        with contextlib.suppress(OSError):
            self._wire.send(Close(), 1.0)

    def end(self, grace_s: float = 0.0) -> None:
        """Wait for the end of the process for ``grace_s``, then kill it with everything it started.

        Does nothing in a process that was forked from the one that started it.
        """
        if self._owner != os.getpid() or self._lifeline < 0:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        self._wire.socket.close()
        os.close(self._lifeline)
        self._lifeline = -1
        self.memory.close()
        self._log.close()


def _recipe(build: Callable[[Any], Any], params: EnvParams) -> bytes:
    try:
        return pickle.dumps((build, params))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"{build!r} cannot be built in a simulator process ({errors.one_line(error)}). It must be a class or a "
            "function at the top of an importable module."
        ) from error


def end_all(simulators: list[Simulator], grace_s: float = _CLOSE_S) -> None:
    """End all processes, together: each is asked first, and all have ``grace_s`` seconds."""
    for simulator in simulators:
        simulator.ask_to_end()
    deadline = time.monotonic() + grace_s
    while simulators:
        simulators.pop().end(max(deadline - time.monotonic(), 0.0))
