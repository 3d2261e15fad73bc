"""Who is still alive: the processes of every open group are watched during every wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

from plugrl.errors import WorkerDied
from plugrl.runtime import process
from plugrl.runtime.failure import RankInfo

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup

_CAUSE_TIMEOUT_S = 3.0
_STDERR_LINES = 12
_MARKERS = ("Worker exit detail: ", "exit detail: ", "cause: ")
_ADVICE = (" Some common causes include", " There are some potential root causes")


class Watch:
    """Finds dead processes among the open groups of a session.

    Those on this machine are looked up in the process table, which takes microseconds and is certain. On other nodes a
    ping is left queued at each actor: Ray fails it when the actor's process ends, even behind a call that hangs.
    """

    def __init__(self, local_node_id: str) -> None:
        self._local_node_id = local_node_id
        self._pings: dict[tuple[str, int, int], Any] = {}

    def find_dead(self, groups: list[WorkerGroup]) -> tuple[WorkerGroup, RankInfo] | None:
        """Return one dead rank and its group, None when all are alive as far as is known."""
        for group in groups:
            for rank, info in group.known_processes().items():
                if self._is_dead(group, rank, info):
                    return group, info
        return None

    def forget(self, group: WorkerGroup) -> None:
        """Stop watching a group that is closed."""
        self._pings = {key: ref for key, ref in self._pings.items() if key[:2] != (group.name, group.generation)}

    def _is_dead(self, group: WorkerGroup, rank: int, info: RankInfo) -> bool:
        if info.node_id == self._local_node_id:
            return not process.is_alive(info.pid, info.started)
        key = (group.name, group.generation, rank)
        ref = self._pings.get(key)
        if ref is None:
            self._pings[key] = group.actors[rank].ping.remote()
            return False
        if not ray.wait([ref], timeout=0)[0]:
            return False
        del self._pings[key]
        return _error_of(ref, 0) is not None


def death(group: WorkerGroup, rank: int, info: RankInfo | None, reason: str = "") -> WorkerDied:
    """Describe the death of a rank: what Ray knows of its cause, and the end of its stderr."""
    where = str(info) if info else f"worker group {group.name!r} rank {rank}"
    cause = reason or _cause(_error_of(group.actors[rank].ping.remote(), _CAUSE_TIMEOUT_S))
    last = process.tail(info.stderr_path, _STDERR_LINES) if info and info.stderr_path else ""
    text = f"{where} died: {cause}"
    if last:
        text += f"\nLast lines of its stderr ({info.stderr_path if info else ''}):\n{last}"
    return WorkerDied(
        text,
        group=group.name,
        rank=rank,
        node=info.node_ip if info else "",
        pid=info.pid if info else 0,
        remote_traceback=last,
    )


def cause_of(error: BaseException) -> str:
    """Return the sentence in Ray's error that says why the process ended."""
    return _cause(error)


def _error_of(ref: Any, timeout: float) -> BaseException | None:
    try:
        ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        return None
    except ray.exceptions.RayError as error:
        return error
    return None


def _cause(error: BaseException | None) -> str:
    if error is None:
        return "its process is gone."
    text = " ".join(str(error).split())
    for marker in _MARKERS:
        if marker in text:
            text = text.split(marker, 1)[1]
            break
    for advice in _ADVICE:
        if advice in text:
            return text.split(advice, 1)[0] + " It was killed (by a signal or for lack of memory) or it crashed."
    return text[:600]
