"""A training step of actor, rollout and a toy environment, phase by phase, for faults to be put into."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from injection import ORDER

from plugrl.config.schema import RunConfig
from plugrl.engines.base import BatchOptions
from plugrl.rollouts.base import SamplingParams
from plugrl.runners.components import ROLLOUT_WORKER, TRAINING_WORKER, engine_spec
from plugrl.runtime import RaySession, WorkerGroup, wait_all
from plugrl.runtime.process import is_alive, wait_gone
from plugrl.workers.groups import RolloutGroup, TrainingGroup
from plugrl.workers.objectives import PolicyObjective

ENV_WORKER = "plugrl.testing.call_workers:CallWorker"
PHASES = ("sample", "score", "log_probs", "update", "sync", "save")
COMPONENTS = ("actor", "rollout", "env")
FAULTS = ("kill", "freeze", "exception", "memory", "full")
METHODS = {
    ("sample", "rollout"): "generate", ("sample", "env"): "echo", ("log_probs", "actor"): "infer",
    ("update", "actor"): "train", ("sync", "actor"): "send_weights", ("sync", "rollout"): "receive_weights",
    ("save", "actor"): "save",
}  # fmt: skip
"""What a component does in a phase; in all others it is idle."""
LIMIT_S = 10.0
_WAIT_S = 60.0


@dataclass(frozen=True)
class Cell:
    """A fault of a component in a phase."""

    component: str
    fault: str
    phase: str

    @property
    def makes_sense(self) -> bool:
        """An idle component can be killed or frozen, but it raises nothing and needs no memory."""
        return self.fault in ("kill", "freeze") or (self.phase, self.component) in METHODS


@dataclass
class Outcome:
    """What came of it: the name of the error's type, empty when the phase went on; seconds; processes left behind."""

    error: str
    text: str
    seconds: float
    left: list[int] = field(default_factory=list)


class Trial:
    """The components; what a fault broke is launched again before the next step."""

    def __init__(self, session: RaySession, config: RunConfig, folder: Path) -> None:
        self.session = session
        self.config = config
        self.folder = folder
        self.order = folder / "order.json"
        self.groups: dict[str, WorkerGroup] = {}
        self.version = 0
        self._saved = 0

    def launch(self) -> None:
        """Launch what does not run."""
        missing = [name for name in COMPONENTS if name not in self.groups]
        if not missing:
            return
        env = {
            ORDER: str(self.order), "RLINF_EXT_MODULE": "injection",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        for name in missing:
            self.groups[name] = WorkerGroup(self.session, **self._worker(name), name=f"f-{name}", devices=[0], env=env)
        wait_all([self.groups[name].ready for name in missing], 240)
        self.actor = TrainingGroup(self.groups["actor"], _WAIT_S)
        self.rollout = RolloutGroup(self.groups["rollout"], _WAIT_S, 1)

    def _worker(self, name: str) -> dict[str, Any]:
        if name == "env":
            return {"worker_class": ENV_WORKER}
        if name == "rollout":
            model = self.config.model.without_adapter()
            return {"worker_class": ROLLOUT_WORKER, "args": (model, self.config.rollout)}
        spec = engine_spec(self.config, "actor", 10, None, False)
        return {"worker_class": TRAINING_WORKER, "args": (spec,)}

    def close(self, names: tuple[str, ...] = COMPONENTS) -> list[int]:
        """Close groups and return the pids of processes that are left of them."""
        closing = {name: self.groups.pop(name) for name in names if name in self.groups}
        known = [info for group in closing.values() for info in group.known_processes().values()]
        for group in closing.values():
            group.close()
        wait_gone([(info.pid, info.started) for info in known], 2.0)
        return [info.pid for info in known if is_alive(info.pid, info.started)]

    def run(self, cell: Cell) -> Outcome:
        """Launch what is missing, put the fault into the phase, and say what came of it."""
        self.launch()
        info = self.groups[cell.component].known_processes()[0]
        method = METHODS.get((cell.phase, cell.component))
        if method is not None:
            order = {"group": f"f-{cell.component}", "rank": 0, "method": method, "fault": cell.fault}
            self.order.write_text(json.dumps(order))
        else:
            os.kill(info.pid, signal.SIGKILL if cell.fault == "kill" else signal.SIGSTOP)
        began = time.monotonic()
        error, text = "", ""
        try:
            self.phases()[cell.phase]()
            if method is None:
                # An idle component is missed by the next wait for anybody at the latest.
                self.wait_for_it(LIMIT_S - (time.monotonic() - began))
        except Exception as caught:  # whatever it is, it is what the matrix shows
            error, text = type(caught).__name__, str(caught)
        seconds = time.monotonic() - began
        self.order.unlink(missing_ok=True)
        # Weights that came in part, and whatever else an error left half done, start anew as they would in a run.
        left = self.close() if error else []
        return Outcome(error, text, seconds, left)

    def wait_for_it(self, seconds: float) -> None:
        """Let the other components work until the driver misses one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.session.check_alive()
            time.sleep(0.1)

    def phases(self) -> dict[str, Callable[[], Any]]:
        """Return what each phase does."""
        batch = _batch()
        return {
            "sample": self._sample,
            "score": lambda: time.sleep(0.05),
            "log_probs": lambda: self.actor.infer(batch, BatchOptions()),
            "update": lambda: self.actor.train(
                [batch], PolicyObjective(config=self.config.actor, max_response_length=4), BatchOptions()
            ),
            "sync": self._sync,
            "save": self._save,
        }

    def _sample(self) -> None:
        self.groups["env"].execute("echo").wait(_WAIT_S)
        self.rollout.generate([[1, 2, 3], [2, 3]], SamplingParams(n=2, max_new_tokens=4), [1, 2])

    def _sync(self) -> None:
        self.version += 1
        self.rollout.update_weights(self.actor, self.version)

    def _save(self) -> None:
        self._saved += 1
        self.actor.save(self.folder / f"step-{self._saved}", self._saved)


def _batch() -> dict[str, torch.Tensor]:
    """Four rows of five tokens, the last three of them responses."""
    ids = torch.arange(20).reshape(4, 5) % 10 + 1
    mask = torch.ones(4, 5, dtype=torch.long)
    response = torch.ones(4, 3)
    return {
        "input_ids": ids, "attention_mask": mask, "response_mask": response,
        "advantages": torch.linspace(-1, 1, 12).reshape(4, 3), "old_log_probs": torch.full((4, 3), -2.0),
    }  # fmt: skip
