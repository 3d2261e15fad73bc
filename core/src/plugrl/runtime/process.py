"""Looking at processes of this machine: alive or not, since when, the end of their logs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Counted after the name, which may itself hold spaces.
_PARENT_FIELD = 1
_STARTED_FIELD = 19

GONE = ("", "Z", "X")
"""States of a process that runs no more, see :func:`state`."""


@dataclass(frozen=True)
class _Beginning:
    pid: int
    environment: Mapping[str, str]
    parent: int


_begun: _Beginning | None = None


def started_at(pid: int) -> str:
    """Return the kernel's start time of a process, empty when there is none (or no /proc)."""
    fields = _stat(pid)
    return fields[_STARTED_FIELD] if fields else ""


def is_alive(pid: int, started: str = "") -> bool:
    """Whether the process runs. A zombie does not; nor does another process that got the pid since."""
    return state(pid, started) not in GONE


def state(pid: int, started: str = "") -> str:
    """Return the kernel's letter for the state of a process: R, S, D, T stopped, t held by a debugger, Z and X dead.

    Empty when there is none, or another one has the pid; ``?`` where there is no /proc.
    """
    if not (_PROC / "self").exists():
        return "?" if _answers_signal(pid) else ""
    fields = _stat(pid)
    return fields[0] if fields and (not started or fields[_STARTED_FIELD] == started) else ""


def describe(pid: int) -> str:
    """Return what the kernel says of a process: its state and the function it waits in, where that may be read."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return ""
    words = [line.split(":", 1)[1].strip() for line in status.splitlines() if line.startswith("State:")]
    try:
        channel = (_PROC / str(pid) / "wchan").read_text().strip()
    except OSError:
        channel = ""
    return f"state {' '.join(words)}" + (f", waiting in {channel}" if channel not in ("", "0") else "")


def begin_with(environment: Mapping[str, str], parent: int) -> None:
    """Note what this fork of another process was to start with: the system shows what that one started with.

    ``parent`` is the process that asked for it.
    """
    global _begun
    _begun = _Beginning(os.getpid(), dict(environment), parent)


def parent() -> int:
    """Return the pid of the process that started this one."""
    return _begun.parent if _begun is not None and _begun.pid == os.getpid() else os.getppid()


def environment_of(pid: int) -> dict[str, str] | None:
    """Return the variables that a process was started with, None where the system does not show them."""
    if _begun is not None and pid == _begun.pid == os.getpid():
        return dict(_begun.environment)
    try:
        text = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (item.partition("=") for item in text.decode(errors="surrogateescape").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def children(pid: int) -> list[int]:
    """Return the pids of a process's children; empty where there is no /proc."""
    found = []
    for path in _PROC.glob("[0-9]*/stat"):
        fields = _stat(int(path.parent.name))
        if fields and int(fields[_PARENT_FIELD]) == pid:
            found.append(int(path.parent.name))
    return found


def wait_gone(processes: Iterable[tuple[int, str]], timeout: float) -> list[tuple[int, str]]:
    """Wait until the ``(pid, start time)`` pairs are gone; return those that are left after ``timeout`` seconds."""
    left = list(processes)
    deadline = time.monotonic() + timeout
    while left and time.monotonic() < deadline:
        left = [(pid, started) for pid, started in left if is_alive(pid, started)]
        if left:
            time.sleep(0.02)
    return left


def kill(pid: int, started: str) -> None:
    """Kill a process of this machine, if it is still the one that started then."""
    if is_alive(pid, started):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def tail(path: str, lines: int = 12, size: int = 16384) -> str:
    """Return the last lines of a text file, empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    # Ray marks its log files with lines of its own.
    kept = [line for line in text.splitlines() if line.strip() and not line.startswith(":")]
    return "\n".join(kept[-lines:])


def _stat(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _answers_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
