"""The driver's link to the watcher of another node: it asks without waiting and remembers the answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plugrl.runtime.failure import RankInfo
from plugrl.runtime.nodes import label_of
from plugrl.runtime.observer import NodeWatcher, Observation, Subject, Words

if TYPE_CHECKING:
    from plugrl.config.schema import ClusterConfig

_WORDS_TIMEOUT_S = 3.0
_CONNECT_S = 1.0


class NodeLink:
    """What is known of the workers of one node. Not safe for several threads at once: the Watch guards it."""

    def __init__(self, node_id: str, config: ClusterConfig) -> None:
        self._node_id = node_id
        self._config = config
        self._reason = ""
        self._seen: dict[Subject, Observation] = {}
        self._ref: Any = None
        self._asked = 0.0
        self._start()

    def _start(self) -> None:
        self._answered = False
        strategy = NodeAffinitySchedulingStrategy(self._node_id, soft=False)
        self._actor = (
            ray.remote(NodeWatcher).options(num_cpus=0, scheduling_strategy=strategy).remote(self._config.heartbeat_s)
        )

    def ask(self, infos: Sequence[RankInfo]) -> None:
        """Take the answer to the last question, if it is there, and ask the next one when it is due."""
        if self._reason:
            return
        now = time.monotonic()
        if self._ref is not None:
            if not ray.wait([self._ref], timeout=0)[0]:
                return
            self._take()
        if not self._reason and now - self._asked >= self._config.heartbeat_s / 2:
            self._asked = now
            self._ref = self._actor.look.remote(list(infos))

    def _take(self) -> None:
        ref, self._ref = self._ref, None
        try:
            self._seen = ray.get(ref)
            self._answered = True
        except ray.exceptions.RayError:
            self._reason = self._lost()
            if not self._reason:
                self._start()  # the watcher alone has died

    def seen(self, info: RankInfo) -> tuple[Observation, str]:
        """Return what is known of a worker, and why where the whole node is concerned."""
        last = self._seen.get((info.pid, info.started), Observation(state="alive"))
        if self._reason:
            return replace(last, state="dead"), self._reason
        silent = time.monotonic() - self._asked
        # The first answer takes as long as the watcher's process to start.
        limit = 2 * self._config.heartbeat_s if self._answered else self._config.start_timeout_s
        if self._ref is not None and silent > limit:
            return replace(last, state="silent", for_s=silent), "Its node does not answer either."
        return last, ""

    def words_of(self, info: RankInfo, *, stacks: bool) -> Words:
        """Ask what a worker says of itself; nothing when the node does not answer within seconds."""
        if self._reason:
            return Words()
        try:
            words: Words = ray.get(self._actor.words_of.remote(info, stacks), timeout=_WORDS_TIMEOUT_S)
        except ray.exceptions.RayError:
            return Words()
        return words

    def cancel(self, info: RankInfo, call: int) -> None:
        """Ask a worker to stop a call."""
        self._actor.cancel.remote(info, call)

    def kill(self, info: RankInfo) -> None:
        """Kill a worker."""
        self._actor.kill.remote(info)

    def forget(self, infos: Sequence[RankInfo]) -> None:
        """Let go of workers that are closed."""
        mine = [info for info in infos if info.node_id == self._node_id]
        if mine and not self._reason:
            self._actor.forget.remote(mine)
        for info in mine:
            self._seen.pop((info.pid, info.started), None)

    def _lost(self) -> str:
        """Say that the node is lost, empty when its server still listens."""
        for node in ray.nodes():
            if node["NodeID"] == self._node_id:
                label = label_of(node["NodeManagerAddress"], node.get("NodeName", ""))
                if not node["Alive"] or not _listens(node["NodeManagerAddress"], node["NodeManagerPort"]):
                    return f"node {label} is lost, with all of its workers."
                return ""
        return f"node {self._node_id} is lost, with all of its workers."


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
