"""The channels between environments and policy: what was seen goes to who acts, actions go to who steps.

Each worker makes the channel that it reads from, so that a message is one transfer. Nothing here passes the driver.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from plugrl.runtime.channel import Channel
from plugrl.runtime.worker import Worker
from plugrl.workers.embodied.messages import Seen
from plugrl.workers.embodied.scenes import Scenes, rollout_of

ENV, ROLLOUT = "env", "rollout"
"""Names of the two components."""


class EnvLink:
    """The environment worker's end."""

    def __init__(self, worker: Worker, scenes: Scenes, rollouts: int, timeout: float) -> None:
        self._scenes = scenes
        self._rollouts = rollouts
        self._timeout = timeout
        self._worker = worker
        self._actions = Channel.create(worker, actions_channel(worker.rank), exist_ok=True)
        self._seen: dict[int, Channel] = {}

    def show(self, seen: Seen) -> None:
        """Tell the policy what it is to act on."""
        rollout = rollout_of(seen.index, self._rollouts)
        if rollout not in self._seen:
            self._seen[rollout] = self._worker.channel(seen_channel(rollout), timeout=self._timeout)
        self._seen[rollout].put(seen, timeout=self._timeout)

    def actions(self, index: int) -> Tensor:
        """Wait for the actions of a slice, float32 [N, C, D]."""
        actions: Tensor = self._actions.get(index, timeout=self._timeout)
        return actions


class ActingLink:
    """The rollout worker's end."""

    def __init__(self, worker: Worker, timeout: float) -> None:
        self._worker = worker
        self._timeout = timeout
        self._seen = Channel.create(worker, seen_channel(worker.rank), exist_ok=True)
        self._actions: dict[int, Channel] = {}

    def next(self) -> Seen:
        """Wait for what is to be acted on next, of any slice."""
        seen: Any = self._seen.get(timeout=self._timeout)
        assert isinstance(seen, Seen)
        return seen

    def act(self, scenes: Scenes, index: int, actions: Tensor) -> None:
        """Send the actions of a slice."""
        worker = scenes.worker_of(index)
        if worker not in self._actions:
            self._actions[worker] = self._worker.channel(actions_channel(worker), timeout=self._timeout)
        self._actions[worker].put(actions, key=index, timeout=self._timeout)


def seen_channel(rollout: int) -> str:
    """Return the name of the channel that a rollout worker reads."""
    return f"embodied.seen.{rollout}"


def actions_channel(worker: int) -> str:
    """Return the name of the channel that an environment worker reads."""
    return f"embodied.actions.{worker}"
