"""A training step of actor, rollout and a toy environment, phase by phase, for faults to be put into."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from injection import ORDER, lose_node

from plugrl.config.schema import RunConfig
from plugrl.engines.base import BatchOptions
from plugrl.errors import PlugRLError, WorkerDied, WorkerFrozen
from plugrl.rollouts.base import SamplingParams
from plugrl.runners.components import ROLLOUT_WORKER, TRAINING_WORKER, engine_spec
from plugrl.runtime import RaySession, WorkerGroup, wait_all
from plugrl.runtime.channel import Channel
from plugrl.runtime.process import is_alive, wait_gone
from plugrl.workers.groups import RolloutGroup, TrainingGroup
from plugrl.workers.objectives import PolicyObjective

ENV_WORKER = "plugrl.testing.call_workers:CallWorker"
PHASES = ("sample", "score", "log_probs", "update", "sync", "save")
COMPONENTS = ("actor", "rollout", "env")
PROCESS_FAULTS = ("kill", "freeze")
"""What may happen to an idle process too."""
CHANNEL_FAULTS = ("closed", "orphaned")
METHOD_FAULTS = ("exception", "memory", "full", *CHANNEL_FAULTS)
"""What happens within a method. full: no file may grow. closed: the channel that it waits for is closed. orphaned: the
process that serves the channel is killed."""
METHODS = {
    ("sample", "rollout"): "generate", ("sample", "env"): "echo", ("log_probs", "actor"): "infer",
    ("update", "actor"): "train", ("sync", "actor"): "send_weights", ("sync", "rollout"): "receive_weights",
    ("save", "actor"): "save",
}  # fmt: skip
"""What a component does in a phase; in all others it is idle."""
CONFIG = """
model:
  model_type: causal_lm
  config:
    model_type: qwen3
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 2
    num_attention_heads: 2
    num_key_value_heads: 1
    head_dim: 16
    max_position_embeddings: 32
    tie_word_embeddings: true
  tokenizer: {type: characters, alphabet: "0123456789+-="}
  precision: fp32
data: {source: arithmetic, train_batch_size: 4, max_prompt_length: 8, max_response_length: 4}
reward: {name: exact_match}
actor: {strategy: fsdp2, ppo_mini_batch_size: 4, optim: {lr: 1.0e-3}}
"""
LIMIT_S = 10.0
_WAIT_S = 60.0
_START_S = 240.0


@dataclass(frozen=True)
class Cell:
    """A fault of a component in a phase."""

    component: str
    fault: str
    phase: str

    @property
    def makes_sense(self) -> bool:
        """An idle component can be killed or frozen, but it raises nothing and needs no memory."""
        return self.fault in PROCESS_FAULTS or (self.phase, self.component) in METHODS


@dataclass
class Outcome:
    """What came of it: the name of the error's type, empty when the phase went on; seconds; processes left behind.

    again_s: seconds until what was lost was launched again and a whole step had run.
    """

    error: str
    text: str
    seconds: float
    left: list[int] = field(default_factory=list)
    again_s: float = 0.0


class Trial:
    """The components; after each fault, what it broke is launched again, and a whole step must run.

    Args:
        spare: devices of components that move to the next one when they are lost; the others stay on device 0.
    """

    def __init__(
        self, session: RaySession, config: RunConfig, folder: Path, spare: Mapping[str, Sequence[int]] | None = None
    ):
        self.session = session
        self.config = config
        self.folder = folder
        self.order = folder / "order.json"
        self.spare = {name: list(devices) for name, devices in (spare or {}).items()}
        self.devices = {name: self.spare[name].pop(0) if name in self.spare else 0 for name in COMPONENTS}
        self.groups: dict[str, WorkerGroup] = {}
        self.version = 0
        self._count = 0
        self._batch = _batch()

    # ----------------------------------------------------------------- the components
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
            self.groups[name] = WorkerGroup(
                self.session, **self._worker(name), name=f"f-{name}", devices=[self.devices[name]], env=env
            )
        wait_all([self.groups[name].ready for name in missing], _START_S)
        if "actor" in missing:
            self.actor = TrainingGroup(self.groups["actor"], _WAIT_S)
        if "rollout" in missing:
            self.rollout = RolloutGroup(self.groups["rollout"], _WAIT_S, 1)

    def _worker(self, name: str) -> dict[str, Any]:
        if name == "env":
            return {"worker_class": ENV_WORKER}
        if name == "rollout":
            model = self.config.model.without_adapter()
            return {"worker_class": ROLLOUT_WORKER, "args": (model, self.config.rollout)}
        spec = engine_spec(self.config, "actor", 10, None, False)
        return {"worker_class": TRAINING_WORKER, "args": (spec,)}

    def close(self, names: Sequence[str] = COMPONENTS) -> list[int]:
        """Close groups and return the pids of processes that are left of them."""
        closing = {name: self.groups.pop(name) for name in names if name in self.groups}
        known = [info for group in closing.values() for info in group.known_processes().values()]
        for group in closing.values():
            group.close()
        wait_gone([(info.pid, info.started) for info in known], 2.0)
        return [info.pid for info in known if is_alive(info.pid, info.started)]

    # ----------------------------------------------------------------- faults
    def run(self, cell: Cell) -> Outcome:
        """Run a step with the fault in its phase, and say what came of it."""
        self.launch()
        self.before(cell.phase)
        with ExitStack() as stack:
            act = self._prepared(cell, stack)
            began = time.monotonic()
            error: Exception | None = None
            try:
                act()
            except Exception as caught:  # whatever it is, it is what the matrix shows
                error = caught
            seconds = time.monotonic() - began
        return self.recovered(error, seconds)

    def recovered(self, error: BaseException | None, seconds: float) -> Outcome:
        """Launch again what was lost, and run a whole step."""
        self.order.unlink(missing_ok=True)
        began = time.monotonic()
        left: list[int] = []
        if isinstance(error, WorkerDied | WorkerFrozen):
            name = error.group.removeprefix("f-")
            left = self.close([name])
            if name in self.spare:
                self.devices[name] = self.spare[name].pop(0)
        self.launch()
        self.step()
        text = "" if error is None else "\n".join([str(error), *getattr(error, "__notes__", ())])
        kind = "" if error is None else type(error).__name__
        return Outcome(kind, text, seconds, left, time.monotonic() - began)

    def before(self, phase: str) -> None:
        """Run what comes before a phase."""
        for name in PHASES[: PHASES.index(phase)]:
            self.phases()[name]()

    def _prepared(self, cell: Cell, stack: ExitStack) -> Callable[[], None]:
        """Return what runs the phase with its fault."""
        method = METHODS.get((cell.phase, cell.component))
        if method is None:
            return partial(self._harm_idle, cell)
        order = {"group": f"f-{cell.component}", "rank": 0, "method": method, "fault": cell.fault}
        if cell.fault in CHANNEL_FAULTS:
            lost = self.channel_to_lose(cell.fault, lambda: not self.order.exists())
            order["channel"] = lost.name
        self.order.write_text(json.dumps(order))
        if cell.fault in CHANNEL_FAULTS:
            stack.enter_context(lost)
        return self.phases()[cell.phase]

    def _harm_idle(self, cell: Cell) -> None:
        began = time.monotonic()
        pid = self.groups[cell.component].known_processes()[0].pid
        if cell.fault == "node":
            lose_node(pid)
        else:
            os.kill(pid, signal.SIGKILL if cell.fault == "kill" else signal.SIGSTOP)
        self.phases()[cell.phase]()
        # An idle component is missed by the next wait for anybody at the latest.
        self.wait_for_it(LIMIT_S - (time.monotonic() - began))

    def channel_to_lose(self, fault: str, is_waited_for: Callable[[], bool]) -> LostChannel:
        """Create a channel that is closed, or whose process is killed, once somebody waits for it."""
        self._count += 1
        return LostChannel(self.session, f"faults-{self._count}", fault, is_waited_for)

    def wait_for_it(self, seconds: float) -> None:
        """Let the other components work until the driver misses one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.session.check_alive()
            time.sleep(0.1)

    # ----------------------------------------------------------------- the step
    def step(self) -> None:
        """Run all phases."""
        for run in self.phases().values():
            run()

    def phases(self) -> dict[str, Callable[[], Any]]:
        """Return what each phase does."""
        return {
            "sample": self._sample,
            "score": lambda: time.sleep(0.05),
            "log_probs": lambda: self.actor.infer(self._batch, BatchOptions()),
            "update": lambda: self.actor.train(
                [self._batch], PolicyObjective(config=self.config.actor, max_response_length=4), BatchOptions()
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
        self._count += 1
        self.actor.save(self.folder / f"step-{self._count}", self._count)


class LostChannel:
    """A channel that goes away 0.3 s after ``is_waited_for``."""

    def __init__(self, session: RaySession, name: str, fault: str, is_waited_for: Callable[[], bool]) -> None:
        self._channel = Channel.create(session, name)
        self.name = name
        self._fault = fault
        self._is_waited_for = is_waited_for
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._lose)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        if self._fault == "closed":
            self._channel.delete()

    def _lose(self) -> None:
        while not self._is_waited_for() and not self._left.wait(0.02):
            pass
        self._left.wait(0.3)
        if self._fault == "closed":
            self._channel.close()
        else:
            os.kill(channel_host(), signal.SIGKILL)


def channel_host() -> int:
    """Return the pid of the process of this run that serves its channels."""
    found = [pid for pid, command in descendants(os.getpid()).items() if command.startswith("ray::ChannelHost")]
    if len(found) != 1:
        raise PlugRLError(f"One process should serve the channels, not {found}.")
    return found[0]


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below one that are no zombies, with their command lines."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return {child: _command(child) for child in found}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _batch() -> dict[str, torch.Tensor]:
    """Four rows of five tokens, the last three of them responses."""
    ids = torch.arange(20).reshape(4, 5) % 10 + 1
    mask = torch.ones(4, 5, dtype=torch.long)
    response = torch.ones(4, 3)
    return {
        "input_ids": ids, "attention_mask": mask, "response_mask": response,
        "advantages": torch.linspace(-1, 1, 12).reshape(4, 3), "old_log_probs": torch.full((4, 3), -2.0),
    }  # fmt: skip
