"""Loaded in workers as an extension module: does what a file asks for when the method that it names is called."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ORDER = "PLUGRL_TEST_FAULT"
"""Variable with the path of the file: {"group", "rank", "method", "fault"}, with "channel" or "pid" where the fault
needs one. It is removed before the fault is done."""
SMALL_BYTES = 16 * 1024
CHANNEL_WAIT_S = 60.0


def register() -> None:
    """Look at the file before each method of a worker."""
    from plugrl.runtime.host import Host

    invoke = Host._invoke

    def faulty(self: Host, method: str, common: Any, own: Any) -> Any:
        info = self.report()
        order = ordered(info.group, info.rank, method)
        if order is None:
            return invoke(self, method, common, own)
        with limits_kept():
            strike(order, self._worker)
            return invoke(self, method, common, own)

    Host._invoke = faulty  # type: ignore[method-assign]


def ordered(group: str, rank: int, method: str) -> dict[str, Any] | None:
    """Return the fault that is ordered for this call, once."""
    path = Path(os.environ.get(ORDER, ""))
    try:
        order: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if (order["group"], order["rank"], order["method"]) != (group, rank, method):
        return None
    path.unlink()
    return order


@contextmanager
def limits_kept() -> Iterator[None]:
    """Lift in the end what :func:`strike` limited."""
    limits = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)}
    try:
        yield
    finally:
        for kind, limit in limits.items():
            resource.setrlimit(kind, limit)


def lose_node(pid: int) -> None:
    """Kill Ray's server of the node that a worker is on, and all of its workers."""
    from plugrl.runtime.process import children

    server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    workers = children(server)
    for victim in (server, *(worker for worker in workers if worker != pid), pid):
        os.kill(victim, signal.SIGKILL)


def strike(order: dict[str, Any], worker: Any) -> None:
    """Do it; a limit holds for the rest of the call. ``worker`` is whoever knows the run's channels."""
    fault = order["fault"]
    if fault == "exception":
        raise ValueError("an injected fault")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "memory":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 2**26
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        bytearray(2**30)
    if fault == "full":
        # No file, and so no shared memory, may grow: what /dev/shm or a disk without space does.
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if fault in ("closed", "orphaned"):
        # Somebody closes the channel, or kills the process that serves it, while this one waits.
        worker.channel(order["channel"]).get(timeout=CHANNEL_WAIT_S)
    if fault == "node":
        lose_node(os.getpid())
    if fault == "signal":
        os.kill(order["pid"], order["number"])
