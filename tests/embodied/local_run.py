"""The workers of a run in one process, with queues for channels."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

import torch

from plugrl.config import RunConfig
from plugrl.platforms import get_platform
from plugrl.runners.components import engine_spec
from plugrl.runners.embodied_rows import Rows, make_rows
from plugrl.workers.embodied.acting import ActingWorker, slices_in_order
from plugrl.workers.embodied.backend import PolicyBackend
from plugrl.workers.embodied.env_worker import EnvReport, EnvWorker
from plugrl.workers.embodied.learning import LearningWorker
from plugrl.workers.embodied.messages import Seen
from plugrl.workers.embodied.objective import EmbodiedObjective
from plugrl.workers.embodied.trajectory import Trajectory
from plugrl.workers.training import build_engine

WAIT_S = 60


class LocalRun:
    """The workers of a run in this process, with queues for channels: environments in a thread of their own."""

    def __init__(self, config: RunConfig, env_workers: int = 1, rollouts: int = 1) -> None:
        self.config = config
        self._seen: list[Queue[Seen]] = [Queue() for _ in range(rollouts)]
        self._actions: dict[int, Queue[torch.Tensor]] = {}
        self._failed: list[BaseException] = []
        self.envs = [_placed(EnvWorker, rank, env_workers, config, ("train", "eval"), rollouts)
                     for rank in range(env_workers)]  # fmt: skip
        self.actings = [_placed(ActingWorker, rank, rollouts, config, env_workers) for rank in range(rollouts)]
        for env in self.envs:
            env._link = SimpleNamespace(
                show=lambda seen: self._seen[seen.index % rollouts].put(seen),
                actions=lambda index: self._taken(self._queue(index)),
            )
        for acting in self.actings:
            acting.backend = PolicyBackend(acting.model, acting.rollout)
            acting.backend.initialize()
            acting._link = SimpleNamespace(
                next=lambda rank=acting.rank: self._taken(self._seen[rank]),
                act=lambda scenes, index, actions: self._queue(index).put(actions),
            )
        spec = engine_spec(config, "actor", 100, None, False)
        self.learner = _placed(LearningWorker, 0, 1, spec)
        self.learner.platform = get_platform()
        self.learner.engine = build_engine(spec)
        self.learner.engine.initialize()

    def _queue(self, index: int) -> Queue[torch.Tensor]:
        return self._actions.setdefault(index, Queue())

    def _taken(self, queue: Queue[Any]) -> Any:
        """Return what comes next, unless a worker fails that it may have to come from."""
        deadline = time.monotonic() + WAIT_S
        while not self._failed and time.monotonic() < deadline:
            with suppress(Empty):
                return queue.get(timeout=0.05)
        raise TimeoutError("the other end failed" if self._failed else f"nothing came within {WAIT_S} s")

    def interact(self, step: int) -> tuple[Trajectory, list[EnvReport]]:
        """Go through a step's passes; returns what came of them."""
        acted, stepped = self._both("interact", step)
        return Trajectory.join(slices_in_order([report.parts for report in acted])), stepped

    def evaluate(self) -> list[EnvReport]:
        """Go through an evaluation."""
        return self._both("evaluate")[1]

    def learn(self, rows: Rows, step: int, **forward: Any) -> list[dict[str, Any]]:
        """Do the optimizer steps of a training step, and bring the weights to who acts."""
        actor = self.config.actor
        batches = rows.mini_batches(actor.ppo_mini_batch_size, actor.ppo_epochs, 1, seed=1, step=step)
        objective = EmbodiedObjective.of(self.config, critic_warmup=False, max_episode_steps=8)
        given = {"temperature": self.config.rollout.temperature, "compute_entropy": True,
                 "compute_values": objective.learns_values, **forward}  # fmt: skip
        micro = actor.ppo_micro_batch_size_per_gpu
        metrics = self.learner.learn(rows.tensors, batches, objective, micro, given)
        for acting in self.actings:
            acting.backend.load_weights(self.learner.engine.module.state_dict().items(), step)
        return metrics

    def step(self, number: int) -> tuple[Trajectory, list[dict[str, Any]], list[EnvReport]]:
        """Do a whole step."""
        trajectory, reports = self.interact(number)
        return trajectory, self.learn(make_rows(trajectory, self.config), number), reports

    def _both(self, method: str, *arguments: Any) -> tuple[list[Any], list[Any]]:
        workers = [*self.actings, *self.envs]
        results: list[Any] = [None] * len(workers)
        errors = self._failed = []

        def run(place: int) -> None:
            try:
                results[place] = getattr(workers[place], method)(*arguments)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(place,)) for place in range(len(workers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        if errors:
            raise errors[0]
        return results[: len(self.actings)], results[len(self.actings) :]


def _placed(kind: type, rank: int, size: int, *arguments: Any) -> Any:
    worker = kind.__new__(kind)
    worker.context = SimpleNamespace(rank=rank, world_size=size, group="here")
    worker.__init__(*arguments)
    return worker
