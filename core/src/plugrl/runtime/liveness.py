"""Who still answers: the processes of every open group are watched during every wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from plugrl.errors import ClusterLost, PlugRLError, WorkerDied, WorkerError, WorkerFrozen
from plugrl.runtime.failure import RankInfo
from plugrl.runtime.node_watch import NodeLink
from plugrl.runtime.observer import Observation, Observer, Words, words_of
from plugrl.runtime.process import is_alive

if TYPE_CHECKING:
    from plugrl.config.schema import ClusterConfig
    from plugrl.runtime.group import WorkerGroup

_CAUSE_TIMEOUT_S = 3.0
_MARKERS = ("Worker exit detail: ", "exit detail: ", "cause: ")
_ADVICE = (" Some common causes include", " There are some potential root causes")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A worker that is gone or does nothing, and for how long it has been seen so."""

    group: WorkerGroup
    info: RankInfo
    seen: Observation
    reason: str = ""


class Watch:
    """Finds dead, stopped and unresponsive processes among the open groups of a session; several threads may ask.

    Args:
        servers: name, pid and start time of processes of this machine without which no group can go on. Ray notices
            the end of one only after its own 15 s, and then ends the driver without a word.
    """

    def __init__(
        self, local_node_id: str, config: ClusterConfig, servers: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        self._local_node_id = local_node_id
        self._config = config
        self._servers = tuple(servers)
        self._observer = Observer(config.heartbeat_s)
        self._links: dict[str, NodeLink] = {}
        self._warned: set[tuple[str, int, str]] = set()
        self._lock = threading.Lock()

    @property
    def lost_server(self) -> str | None:
        """Name and pid of a server that is gone, None while all are there."""
        for name, pid, started in self._servers:
            if not is_alive(pid, started):
                return f"{name} on this machine (pid {pid})"
        return None

    def find(self, groups: Sequence[WorkerGroup]) -> Finding | None:
        """Return one worker of ``groups`` that is gone or frozen beyond its limit, None when there is none.

        Raises ClusterLost when a server is gone.
        """
        if self.lost_server is not None:
            for group in groups:
                group.mark_broken()
            raise ClusterLost(
                f"Ray's {self.lost_server} is gone: it was killed, perhaps for lack of memory (see `dmesg`), or it "
                "crashed. Nothing can go on without it; start the run again with trainer.resume."
            )
        return next(self.find_all(groups), None)

    def find_all(self, groups: Sequence[WorkerGroup], *, noted: bool = False) -> Iterator[Finding]:
        """Give the workers of ``groups`` that are gone or frozen beyond their limits.

        Those that a group with ``on_error="return"`` has noted already are left out unless ``noted``.
        """
        self._ask_nodes(groups)
        for group in groups:
            for rank, info in group.known_processes().items():
                if not noted and rank in group.lost_ranks and group.on_error == "return":
                    continue
                seen, reason = self._look(info)
                if self._is_over_limit(seen, info):
                    yield Finding(group=group, info=info, seen=seen, reason=reason)

    def look(self, info: RankInfo) -> Observation:
        """Return how a worker is, as far as is known; never blocks."""
        return self._look(info)[0]

    def words_of(self, info: RankInfo, *, stacks: bool) -> Words:
        """Return what a worker says of itself, nothing where it cannot be asked."""
        if info.node_id == self._local_node_id:
            return words_of(info, stacks=stacks)
        link = self._link(info)
        return link.words_of(info, stacks=stacks) if link is not None else Words()

    def cancel(self, info: RankInfo, call: int) -> None:
        """Ask a worker to stop a call."""
        if info.node_id == self._local_node_id:
            self._observer.cancel(info, call)
        elif (link := self._link(info)) is not None:
            link.cancel(info, call)

    def kill(self, info: RankInfo) -> None:
        """Kill a worker on another node that Ray cannot end."""
        if (link := self._link(info)) is not None:
            link.kill(info)

    def forget(self, infos: Sequence[RankInfo]) -> None:
        """Stop watching workers that are closed."""
        for info in infos:
            self._observer.forget(info)
        with self._lock:
            for link in self._links.values():
                link.forget(infos)
            self._warned -= {(info.node_id, info.pid, info.started) for info in infos}

    # ----------------------------------------------------------------- details
    def _link(self, info: RankInfo) -> NodeLink | None:
        with self._lock:
            return self._links.get(info.node_id)

    def _ask_nodes(self, groups: Sequence[WorkerGroup]) -> None:
        remote: dict[str, list[RankInfo]] = {}
        for group in groups:
            for info in group.known_processes().values():
                if info.node_id != self._local_node_id:
                    remote.setdefault(info.node_id, []).append(info)
        with self._lock:
            for node_id, infos in remote.items():
                if node_id not in self._links:
                    self._links[node_id] = NodeLink(node_id, self._config)
                self._links[node_id].ask(infos)

    def _look(self, info: RankInfo) -> tuple[Observation, str]:
        if info.node_id == self._local_node_id:
            return self._observer.look(info), ""
        with self._lock:
            link = self._links.get(info.node_id)
            return link.seen(info) if link is not None else (Observation(state="alive"), "")

    def _is_over_limit(self, seen: Observation, info: RankInfo) -> bool:
        if seen.state in ("alive", "dead"):
            return seen.state == "dead"
        if seen.state == "unresponsive":
            if seen.for_s >= self._config.unresponsive_timeout_s:
                return True
            if seen.for_s >= self._config.liveness_timeout_s:
                self._warn(seen, info)
            return False
        return seen.for_s >= self._config.liveness_timeout_s

    def _warn(self, seen: Observation, info: RankInfo) -> None:
        """Say it once; a worker that is in a long call into C is left alone."""
        key = (info.node_id, info.pid, info.started)
        with self._lock:
            if key in self._warned:
                return
            self._warned.add(key)
        logger.warning(
            "%s has given no sign of life for %.1f s, in %s; it is an error after %g s"
            " (cluster.unresponsive_timeout_s).",
            info, seen.for_s, seen.phase or "an unknown place", self._config.unresponsive_timeout_s,
        )  # fmt: skip


def error_of(finding: Finding) -> WorkerError:
    """Return what to raise for a worker that is gone or frozen."""
    if finding.seen.state == "dead":
        return death(finding.group, finding.info.rank, finding.info, finding.reason, finding.seen)
    return _frozen(finding)


def death(
    group: WorkerGroup, rank: int, info: RankInfo | None, reason: str = "", seen: Observation | None = None
) -> WorkerDied:
    """Describe the death of a rank: what it did last, what Ray knows of the cause, and the end of its stderr."""
    where = str(info) if info else f"worker group {group.name!r} rank {rank}"
    cause = reason or cause_of(_error_of(group.actors[rank].ping.remote(), _CAUSE_TIMEOUT_S))
    last = group.session.watch.words_of(info, stacks=False).stderr if info else ""
    text = f"{where} died: {cause}{_during(seen)}"
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


def _frozen(finding: Finding) -> WorkerFrozen:
    info, seen = finding.info, finding.seen
    words = finding.group.session.watch.words_of(info, stacks=seen.state == "unresponsive")
    text = f"{info} has been {seen.state} for {seen.for_s:.1f} s"
    text += (f" ({words.kernel})." if words.kernel else ".") + _during(seen)
    if finding.reason:
        text += f" {finding.reason}"
    if seen.state == "stopped":
        text += f" SIGSTOP or the terminal stopped it; `kill -CONT {info.pid}` on its node lets it go on."
    if words.stacks:
        text += f"\nIts stacks:\n{words.stacks}"
    elif words.stderr:
        text += f"\nLast lines of its stderr ({info.stderr_path}):\n{words.stderr}"
    return WorkerFrozen(
        text,
        state=seen.state,
        group=info.group,
        rank=info.rank,
        node=info.node_ip,
        pid=info.pid,
        remote_traceback=words.stacks,
    )


def _during(seen: Observation | None) -> str:
    if seen is None or seen.phase in ("", "idle"):
        return ""
    return f" It was in {seen.phase}, for {seen.phase_s:.1f} s."


def _error_of(ref: Any, timeout: float) -> BaseException | None:
    try:
        ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        return None
    except ray.exceptions.RayError as error:
        return error
    return None


def cause_of(error: BaseException | None) -> str:
    """Return the sentence in Ray's error that says why the process ended."""
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


def raise_if_lost(groups: Sequence[WorkerGroup], watch: Watch) -> None:
    """Raise WorkerDied or WorkerFrozen when a worker of ``groups`` is gone or frozen; its group is then broken."""
    finding = watch.find(groups)
    if finding is not None:
        error: PlugRLError = error_of(finding)
        finding.group.mark_broken()
        raise error
