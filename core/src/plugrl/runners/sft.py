"""Supervised training: one loop for workers that Ray started and for those of torchrun."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plugrl.checkpoints import CheckpointStore, read_json
from plugrl.config.schema import RunConfig
from plugrl.data.plan import DataPlan, Position
from plugrl.engines.topology import Topology, effective_batch_line
from plugrl.runners.step import Step
from plugrl.runners.validation import Validation
from plugrl.tracking.redact import redact
from plugrl.tracking.tracker import Tracker
from plugrl.workers.ranks import SupervisedGroup

logger = logging.getLogger(__name__)

STEP_FILE = Path("training_state") / "training_step.json"


class SftRun:
    """Workers, place in the data and books of supervised training.

    ``accuracy`` measures the policy at a step by its own answers, where there is something that judges them; elsewhere
    the loss on held-out samples is measured. ``resume_from`` is a checkpoint that was verified.
    """

    def __init__(
        self,
        config: RunConfig,
        group: SupervisedGroup,
        tracker: Tracker,
        store: CheckpointStore,
        accuracy: Callable[[int], Validation] | None = None,
        resume_from: Path | None = None,
    ) -> None:
        self.config = config
        self.group = group
        self.tracker = tracker
        self.store = store
        self.validations: list[Validation] = []
        self._accuracy = accuracy
        self._facts = group.describe()
        self._topology = Topology(dp_replicate=self._facts["dp_replicate"], dp_shard=self._facts["dp_shard"])
        self._plan = DataPlan(
            num_samples=self._facts["samples"],
            batch_size=self._facts["batch_size"],
            world_size=self._topology.dp_world_size,
            drop_last=config.sft.drop_last,
        )
        self.total = config.sft.total_steps
        self.first = 0
        self.position = Position()
        self.reached = False
        self._save_due = self._measure_due = False
        if resume_from is not None:
            self._resume(resume_from)

    def steps(self) -> Iterator[Step]:
        """Give the steps that are left one by one."""
        for number in range(self.first + 1, self.total + 1):
            yield Step(number)

    # ----------------------------------------------------------------- accumulation
    def window(self, number: int) -> tuple[int, int]:
        """Return the length of the accumulation window of a step and its place in it; the last one may be shorter."""
        length = self.config.sft.gradient_accumulation_steps
        index = (number - self.first - 1) % length
        return min(length, self.total - (number - index) + 1), index

    def closes_window(self, number: int) -> bool:
        """Whether an optimizer update follows a step."""
        length, index = self.window(number)
        return index == length - 1

    # ----------------------------------------------------------------- one step
    def update(self, step: Step) -> None:
        """Train on the next samples of every worker."""
        metrics = self.group.step(self.position, *self.window(step.number))
        self.position = self._plan.after(self.position)
        if not math.isfinite(metrics.get("grad_norm", 0.0)):
            logger.warning(
                "step %d: a gradient was not finite, its update was skipped (%d so far).",
                step.number, metrics.get("skipped_steps", 1),
            )  # fmt: skip
        step.record({name if "/" in name else f"sft/{name}": value for name, value in metrics.items()})

    def measure(self, step: Step) -> None:
        """Validate where it is due; within an accumulation window it waits for the window's end."""
        sft = self.config.sft
        self._measure_due |= step.number == self.total or (sft.eval_every > 0 and step.number % sft.eval_every == 0)
        if not (self._measure_due and self.closes_window(step.number)):
            return
        self._measure_due = False
        if self._accuracy is None:
            step.record(self.group.measure())
            return
        validation = self._accuracy(step.number)
        self.validations.append(validation)
        step.record(validation.metrics)
        self.tracker.log_samples(validation.samples, step.number)
        self.reached = sft.stop_at_accuracy is not None and validation.accuracy.value >= sft.stop_at_accuracy

    def save_if_due(self, step: Step) -> None:
        """Write a checkpoint where it is due; a gradient that is half gathered cannot be stored, so that it waits."""
        self.store.check()
        every = self.config.trainer.save_freq
        self._save_due |= every > 0 and step.number % every == 0
        if not self.closes_window(step.number):
            return
        if self._save_due or self.reached or step.number == self.total:
            self._save_due = False
            self.save(step.number)

    def save(self, number: int) -> None:
        """Write weights, training state and place in the data as the checkpoint of a step."""
        values = redact(self.config.model_dump(mode="json"))
        progress = {
            **self._settings(),
            **self.position.as_dict(),
            "finished": self.reached or number == self.total,
            "tracker_run_id": self.tracker.run_id,
        }
        with self.store.write(number) as directory:
            self.group.write(directory, number, progress, values)

    def log(self, step: Step) -> None:
        """Write the step's row of metrics, where one is due."""
        step.stop_clock()
        step.record({f"timing_s/{name}": seconds for name, seconds in step.seconds.items()})
        step.record({"perf/samples_per_s": self._plan.global_batch_size / step.seconds["step"]})
        last = self.reached or step.number == self.total
        if last or step.number % self.config.trainer.log_freq == 0 or any(n.startswith("val") for n in step.metrics):
            self.tracker.log(step.metrics, step.number)

    # ----------------------------------------------------------------- start
    def announce(self, say: Callable[[str], None] = print) -> None:
        """Say what will be trained, and what a person may not expect."""
        facts, sft = self._facts, self.config.sft
        say(f"output directory: {self.store.root.parent}")
        say(f"steps: {self.total} (from {self.first}), samples: {facts['samples']}")
        say(f"parameters: {facts['trainable_parameters']:,} learnable of {facts['parameters']:,}")
        say(effective_batch_line(facts["batch_size"], self._topology, sft.gradient_accumulation_steps))
        length, left = sft.gradient_accumulation_steps, self.total - self.first
        if left % length:
            logger.warning(
                "%d steps are no multiple of the accumulation of %d: the last update is made of %d.",
                left, length, left % length,
            )  # fmt: skip
        every = self.config.trainer.save_freq
        if every > 0 and every % length:
            logger.warning("Checkpoints that fall into an accumulation of %d steps are written at its end.", length)

    def _settings(self) -> dict[str, Any]:
        sft = self.config.sft
        return {
            "batch_size": self._facts["batch_size"],
            "grad_accum_steps": sft.gradient_accumulation_steps,
            "seed": self.config.trainer.seed,
            **self._order(),
        }

    def _order(self) -> dict[str, Any]:
        """What the order of the samples depends on, besides batch size and workers."""
        data = self.config.data
        return {
            "samples": self._facts["samples"],
            "data_seed": self.config.trainer.seed if data.seed is None else data.seed,
            "shuffle": data.shuffle,
            "drop_last": self.config.sft.drop_last,
        }

    def _resume(self, checkpoint: Path) -> None:
        record = read_json(checkpoint / STEP_FILE)
        self.first = int(record["step"])
        self.position = self._position(record)
        self.store.protect(checkpoint)
        self.group.restore(checkpoint, self._settings())
        print(
            f"resumed from step {self.first} (epoch {self.position.epoch}, {self.position.offset} samples into it); "
            f"optimizer updates so far: {record.get('optimizer_updates')}"
        )
        batch, world = record.get("batch_size"), record.get("dp_world_size")
        now = (self._plan.batch_size, self._plan.world_size)
        changed = [
            f"{name}: {record[name]} -> {value}"
            for name, value in self._order().items() if record.get(name) not in (None, value)
        ]  # fmt: skip
        if None not in (batch, world) and (batch, world) != now:
            changed.insert(0, f"{batch} x {world} workers became {now[0]} x {now[1]}")
        if changed:
            logger.warning(
                "The data go on at epoch %d after %d samples, but %s: "
                "which worker sees which sample is not what it would have been.",
                self.position.epoch, self.position.offset, "; ".join(changed),
            )  # fmt: skip

    def _position(self, record: dict[str, Any]) -> Position:
        """Return the stored position; checkpoints of others hold none, and it follows from step and batch."""
        if record.get("epoch") is not None:
            return Position.from_dict(record)
        batch, world = record.get("batch_size"), record.get("dp_world_size")
        plan = DataPlan(
            num_samples=self._plan.num_samples,
            batch_size=int(batch or self._plan.batch_size),
            world_size=int(world or self._plan.world_size),
            drop_last=self._plan.drop_last,
        )
        return plan.at_step(self.first)


def is_finished(checkpoint: Path) -> bool:
    """Whether supervised training ended with this checkpoint, at its last step or at the wanted accuracy."""
    return bool(read_json(checkpoint / STEP_FILE).get("finished"))


def train_sft(run: SftRun) -> None:
    """Train until the last step or until the wanted accuracy is reached; the last step is always saved."""
    run.announce()
    for step in run.steps():
        with step.timed("update_actor"):
            run.update(step)
        with step.timed("testing"):
            run.measure(step)
        with step.timed("save_checkpoint"):
            run.save_if_due(step)
        run.log(step)
        if run.reached:
            break
    run.store.finish()
