"""Processes that run a function as the ranks of a process group, kept alive from call to call.

Starting an interpreter with torch takes seconds, a process group milliseconds: a pool starts its processes once and
makes a group for each call. Tests use it by :mod:`plugrl.testing.ranks`, the conformance kit by itself.
"""

from __future__ import annotations

import inspect
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from plugrl.testing.fork_server import ForkedProcess, ForkServer

START_TIMEOUT_S = 120.0
GRACE_S = 5.0
"""How long the other ranks may go on once one has failed."""


class RankError(AssertionError):
    """A function failed on a rank, a rank died, or a deadline passed; the text has every rank's traceback."""


@dataclass
class _Process:
    popen: subprocess.Popen[bytes] | ForkedProcess
    connection: Connection
    log: Path


class RankPool:
    """Up to ``size`` processes of one platform. A call that fails ends those it used; the next call starts them again.

    Args:
        platform: registered name of the platform of the ranks. A process holds one for its life, so a pool does.
        env: variables that the processes start with beside those of this one.
        folder: where the pool keeps its files while it lives; the system's folder for such when omitted.
        server: what the processes are forked from; each is an interpreter of its own when omitted.
    """

    def __init__(
        self,
        size: int = 4,
        *,
        platform: str = "cpu",
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self.size = size
        self.platform = platform
        self._env = dict(env or {})
        self._server = server
        self._others: dict[str, RankPool] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="plugrl-ranks-", dir=folder)
        self._processes: dict[int, _Process] = {}
        self._calls = 0

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        world: int,
        timeout_s: float = 60.0,
        process_group: bool | None = None,
        platform: str | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Return what ``function(rank, world, *args, **kwargs)`` returned on each of ``world`` ranks.

        Arguments and results are pickled; the function must stand at the top of its file, which the ranks import.
        ``process_group`` None makes a group of the platform's backend when there is more than one rank. Plugins are
        loaded, the platform is chosen and each rank has taken the device of its number; another ``platform`` than the
        pool's has processes of its own, kept as these are. Raises RankError.
        """
        if platform is not None and platform != self.platform:
            if platform not in self._others:
                self._others[platform] = RankPool(self.size, platform=platform, env=self._env, server=self._server)
            return self._others[platform].run(
                function, *args, world=world, timeout_s=timeout_s, process_group=process_group, **kwargs
            )
        if not 1 <= world <= self.size:
            raise ValueError(f"a pool of {self.size} cannot run {world} ranks")
        self._calls += 1
        group = world > 1 if process_group is None else process_group
        store = str(Path(self._folder.name) / f"store-{self._calls}") if group else None
        target = (inspect.getfile(function), function.__qualname__)
        self._start([rank for rank in range(world) if rank not in self._processes])
        for rank in range(world):
            self._processes[rank].connection.send_bytes(message(target, rank, world, store, timeout_s, args, kwargs))
        answers = self._collect(world, time.monotonic() + timeout_s)
        failed = {rank: text for rank, (good, text) in answers.items() if not good}
        if failed:
            self._end(range(world))
            name = f"{Path(target[0]).name}:{target[1]}"
            raise RankError("\n".join(f"{name} on rank {rank} of {world}: {text}" for rank, text in failed.items()))
        return [answers[rank][1] for rank in range(world)]

    def close(self) -> None:
        """End all processes and remove the pool's folder."""
        for other in self._others.values():
            other.close()
        self._end(list(self._processes))
        self._folder.cleanup()

    def _start(self, missing: Sequence[int]) -> None:
        for rank in missing:
            ours, theirs = socket.socketpair()
            log = Path(self._folder.name) / f"rank-{rank}.log"
            with theirs, open(log, "wb") as stream:
                popen = self._launch(theirs.fileno(), stream)
            self._processes[rank] = _Process(popen, Connection(ours.detach()), log)
        answers = self._collect_from(missing, time.monotonic() + START_TIMEOUT_S)
        bad = [f"rank {rank}: {text}" for rank, (good, text) in answers.items() if not good]
        if bad:
            self._end(missing)
            raise RankError("the ranks did not start: " + "\n".join(bad))

    def _launch(self, descriptor: int, log: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
        arguments = ["-m", "plugrl.testing.rank_process", str(descriptor), self.platform]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **self._env}
        if self._server is not None:
            return self._server.start(*arguments, stdout=log, stderr=log, pass_fds=(descriptor,), env=env)
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, pass_fds=(descriptor,), env=env)

    def _collect(self, world: int, deadline: float) -> dict[int, tuple[bool, Any]]:
        return self._collect_from(range(world), deadline)

    def _collect_from(self, wanted: Sequence[int], deadline: float) -> dict[int, tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        open_ = {self._processes[rank].connection: rank for rank in wanted}
        while open_:
            ready = wait(list(open_), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in open_.values():
                    answers[rank] = (False, f"no answer before the deadline. {self._last_words(rank)}")
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = open_.pop(connection)
                try:
                    answers[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    answers[rank] = (False, f"the process ended. {self._last_words(rank)}")
                if not answers[rank][0]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers

    def _last_words(self, rank: int) -> str:
        text = self._processes[rank].log.read_text(errors="replace").strip()
        return f"Its output ends with:\n{text[-2000:]}" if text else "It printed nothing."

    def _end(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            process = self._processes.pop(rank, None)
            if process is not None:
                process.connection.close()
                process.popen.kill()
                process.popen.wait()


def message(*parts: Any) -> bytes:
    """Pickle what goes through the pipe by value: the connection's own pickler would share tensors by descriptor."""
    return pickle.dumps(parts)
