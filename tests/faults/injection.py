"""Loaded in workers as an extension module: does what a file asks for when the method that it names is called."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

ORDER = "PLUGRL_TEST_FAULT"
"""Variable with the path of the file: {"group", "rank", "method", "fault"}. It is removed when the fault is done."""
SMALL_BYTES = 16 * 1024


def register() -> None:
    """Look at the file before each method of a worker."""
    from plugrl.runtime.host import Host

    invoke = Host._invoke

    def faulty(self: Host, method: str, common: Any, own: Any) -> Any:
        info = self.report()
        fault = ordered(info.group, info.rank, method)
        if fault is None:
            return invoke(self, method, common, own)
        limits = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)}
        try:
            strike(fault)
            return invoke(self, method, common, own)
        finally:
            for kind, limit in limits.items():
                resource.setrlimit(kind, limit)

    Host._invoke = faulty  # type: ignore[method-assign]


def ordered(group: str, rank: int, method: str) -> str | None:
    """Return the fault that is ordered for this call, once."""
    path = Path(os.environ.get(ORDER, ""))
    try:
        order = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if (order["group"], order["rank"], order["method"]) != (group, rank, method):
        return None
    path.unlink()
    return str(order["fault"])


def strike(fault: str) -> None:
    """Do it; a limit holds for the rest of the call."""
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
