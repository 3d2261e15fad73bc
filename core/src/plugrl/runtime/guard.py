"""What a driver that is killed cannot do itself: end the helpers of its Ray and remove its files.

Ray's own servers and workers end with the driver. Two of its helpers wait for a minute or longer, and the files of the
run would wait for the next one. A shell that sleeps on a pipe from the driver does both the moment the pipe closes, and
says so: when Ray's server on this machine is gone, Ray ends the driver without a word.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from plugrl.runtime.process import children, started_at

# Arguments: the folder, then pid and start time in turn. Field 22 of stat is the start time: it tells a re-used pid.
_SCRIPT = """
folder=$1; shift
read -r word
while [ $# -gt 1 ]; do
  if [ "$(cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null)" = "$2" ]; then kill -9 "$1"; fi
  shift 2
done
rm -rf -- "$folder"
if [ "$word" != done ]; then echo "$MESSAGE" >&2; fi
"""
_MESSAGE = (
    "error: the driver ended before it could clean up: it was killed, or Ray's server on this machine was, perhaps for "
    "lack of memory; its processes and files are removed."
)


class Guard:
    """A shell that outlives this process for a moment. Nothing happens where there is no ``/proc`` or no ``sh``."""

    def __init__(self, folder: Path, pids: Iterable[int]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not Path("/proc/self/stat").exists():
            return
        arguments = [text for pid in pids if (started := started_at(pid)) for text in (str(pid), started)]
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "plugrl-guard", str(folder), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "MESSAGE": _MESSAGE},
                start_new_session=True,
            )
        except OSError:
            return

    def stop(self) -> None:
        """End the guard after the driver has cleaned up; it finds nothing left to do."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"done\n")
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5)


def ray_processes(package: str) -> list[int]:
    """Return the servers that this process started from Ray's ``package`` folder, and all processes below them."""
    servers = [pid for pid in children(os.getpid()) if _executable(pid).startswith(package)]
    found: list[int] = []
    todo = list(servers)
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children(pid)
    return found


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
