"""Supervised training on the reference responses."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from plugrl.checkpoints import CheckpointStore
from plugrl.config.schema import RunConfig
from plugrl.data.packing import pack_sequences
from plugrl.engines.base import BatchOptions
from plugrl.models.processor import TextProcessor
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import Components
from plugrl.runners.prompts import PromptData
from plugrl.runners.step import Step
from plugrl.runners.validation import Validation, validate
from plugrl.tracking.tracker import Tracker
from plugrl.workers.objectives import SupervisedObjective


class SftRun:
    """Components, data and books of supervised training. A rollout is there only when accuracy is measured."""

    def __init__(
        self,
        config: RunConfig,
        components: Components,
        data: PromptData,
        processor: TextProcessor,
        reward: RewardManager | None,
        tracker: Tracker,
        store: CheckpointStore,
    ) -> None:
        assert components.actor is not None
        self.config = config
        self.actor = components.actor
        self.rollout = components.rollout
        self.data = data
        self.processor = processor
        self.reward = reward
        self.tracker = tracker
        self.store = store
        self.validations: list[Validation] = []

    def steps(self) -> Iterator[Step]:
        """Give the steps one by one."""
        for number in range(1, self.config.sft.total_steps + 1):
            yield Step(number)

    def next_batch(self) -> dict[str, Tensor]:
        """Return the next examples in the text layout."""
        rows = self.data.next_rows()
        assert self.data.train.responses is not None
        batch = pack_sequences(
            [self.data.train.prompts[row] for row in rows],
            [self.data.train.responses[row] for row in rows],
            pad_token_id=self.processor.pad_token_id,
        )
        del batch["responses"]
        return batch

    def update(self, step: Step, batch: dict[str, Tensor]) -> None:
        """Do one optimizer step."""
        options = BatchOptions(micro_batch_size=self.config.sft.micro_batch_size_per_gpu, forward_type="sft")
        metrics = self.actor.train([batch], SupervisedObjective(), options)
        step.record({name if "/" in name else f"sft/{name}": value for name, value in metrics.items()})

    def measure(self, step: Step) -> bool:
        """Validate where it is due; returns whether the wanted accuracy is reached."""
        sft = self.config.sft
        due = step.number == sft.total_steps or (sft.eval_every > 0 and step.number % sft.eval_every == 0)
        if not due or self.rollout is None or self.reward is None or not self.data.val.records:
            return False
        self.rollout.update_weights(self.actor, step.number)
        validation = validate(
            self.config, self.rollout, self.data, self.processor, self.reward, step.number, self.tracker.progress
        )
        self.validations.append(validation)
        step.record(validation.metrics)
        self.tracker.log_samples(validation.samples, step.number)
        return sft.stop_at_accuracy is not None and validation.accuracy.value >= sft.stop_at_accuracy

    def save(self, step: Step) -> None:
        """Write the result as a checkpoint."""
        with self.store.write(step.number) as directory:
            self.actor.save(directory, step.number)


def train_sft(run: SftRun) -> None:
    """Train until the last step or until the wanted accuracy is reached, then save."""
    step = Step(0)
    for step in run.steps():
        with step.timed("update_actor"):
            run.update(step, run.next_batch())
        with step.timed("testing"):
            done = run.measure(step)
        step.stop_clock()
        step.record({f"timing_s/{name}": seconds for name, seconds in step.seconds.items()})
        run.tracker.log(step.metrics, step.number)
        if done:
            break
    run.save(step)
