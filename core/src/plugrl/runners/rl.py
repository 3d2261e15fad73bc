"""One run of reinforcement learning: its steps, the flow of each, its checkpoints and books."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from plugrl.checkpoints import CheckpointStore, write_json
from plugrl.checkpoints.layout import PRETRAINED
from plugrl.config.schema import FlowConfig, RunConfig
from plugrl.data.run_plan import RunPlan, plan_run
from plugrl.errors import ConfigError
from plugrl.models.processor import TextProcessor
from plugrl.plugins import hooks
from plugrl.rewards.manager import RewardManager
from plugrl.runners.ahead import Ahead
from plugrl.runners.components import Components
from plugrl.runners.config_path import TRAIN_CONFIG
from plugrl.runners.devices import renew_resident
from plugrl.runners.elastic import Scaler
from plugrl.runners.experience import Experience
from plugrl.runners.needs import Needs
from plugrl.runners.portions import Portions
from plugrl.runners.prompts import PromptData
from plugrl.runners.replanning import PlanFollower
from plugrl.runners.rl_flow import Declare, arrange_rl, bound, print_flow
from plugrl.runners.rl_verbs import RlVerbs
from plugrl.runners.state import CRITIC, load_state, save_state
from plugrl.runners.step import Step
from plugrl.runners.validation import Validation, validate
from plugrl.runtime.flow import Arrangement, FlowRecord, Item, Stage, run_flow
from plugrl.runtime.flow.explain import explain
from plugrl.tracking.control import ControlFolder
from plugrl.tracking.metrics import data_metrics, rollout_difference_metrics, timing_metrics
from plugrl.tracking.redact import redact
from plugrl.tracking.tracker import Tracker

TRAIN_SAMPLES = 4
"""Training generations that are logged at each step with a validation or a checkpoint."""


class RlRun(RlVerbs):
    """Components, data and books of one run. Weights of step s have version s; version 0 is where training began."""

    def __init__(
        self,
        config: RunConfig,
        components: Components,
        data: PromptData,
        processor: TextProcessor,
        reward: RewardManager,
        tracker: Tracker,
        store: CheckpointStore,
        plan: RunPlan,
        follower: PlanFollower | None = None,
    ) -> None:
        super().__init__(config, components, processor, reward)
        self.data = data
        self.tracker = tracker
        self.store = store
        self.plan = plan
        self.follower = follower
        self.scaler = Scaler(self, ControlFolder(store.root.parent))
        self.first_step = 1
        self.validations: list[Validation] = []
        self._arrangement: Arrangement
        self._declare: Declare
        self._portions: Portions
        self._record = FlowRecord()
        self._ahead: Ahead | None = None
        self._position = (self.data.sampler.state_dict(), self.data.sampler.epoch)

    # ----------------------------------------------------------------- the flow of a step
    def arrange(self, declare: Declare) -> None:
        """Put the stages of a step in their places; :meth:`flow` then runs them."""
        self._declare = declare
        self._arrangement = self._arranged(self.components.devices)
        print_flow(explain(self._arrangement, "prompts"))

    def _arranged(self, devices: Mapping[str, Sequence[int]]) -> Arrangement:
        return arrange_rl(self.config, bound(self._declare(self.needs), self._bind), devices)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a step in their places, those that move a component left out."""
        return self._arrangement.work

    def flow_changed(self, flow: FlowConfig) -> None:
        """Go on with another flow, between two steps. Raises ConfigError, and changes nothing, when it does not fit."""
        before, self.config = self.config, self.config.model_copy(update={"flow": flow})
        self.needs = Needs(self.config)
        try:
            self.arrange(self._declare)
        except ConfigError:
            self.config, self.needs = before, Needs(before)
            raise

    def check_devices(self, devices: Mapping[str, Sequence[int]]) -> None:
        """Raise ConfigError when the run could not go on with its components on these devices."""
        rl_plan(self.config, len(self.data.train), len(devices["actor"]))
        self._arranged(devices)

    def devices_changed(self, component: str) -> None:
        """Go on with a component that stands on other devices now, between two steps."""
        renew_resident(self.residency, self.config, self.components, component)
        self._arrangement = self._arranged(self.components.devices)

    def flow(self, step: Step) -> Experience:
        """Run the stages of a step and return its experience, whole."""
        arrangement = self._arrangement
        self._step = step
        sizes = [min(stage.size, arrangement.total) for stage in arrangement.work]
        if self._ahead is None:
            self._batch = self.data.next_batch(step.number)
            self._position = (self.data.sampler.state_dict(), self.data.sampler.epoch)
            self._portions = Portions.for_sizes(arrangement.total, sizes, self.processor.pad_token_id)
        else:
            self._take_drawn(self._ahead, sizes)
        self._greedy, self._updates = {}, []
        record = run_flow(
            arrangement.stages,
            arrangement.total,
            using=lambda item: self.residency.using(item.stage.component),
            transfers={"load": self.residency.load, "unload": self.residency.unload},
            max_ahead=arrangement.max_ahead,
        )
        self._record = record
        step.seconds |= record.busy()
        step.record(record.metrics())
        experience = self._portions.whole()
        self.reward.note(experience.texts, experience.results)
        if "recomputed_log_probs" in experience.tensors:
            rollout, actor = experience.tensors["rollout_log_probs"], experience.tensors["recomputed_log_probs"]
            step.record(rollout_difference_metrics(rollout, actor, experience.response_mask))
        return experience

    def _take_drawn(self, ahead: Ahead, sizes: list[int]) -> None:
        """Wait for the samples of the step, drawn by older weights, and say how old these were."""
        step = self._step
        with step.timed("wait_for_samples"):
            drawn = ahead.take(step.number, self.config.cluster.step_timeout_s)
        step.seconds["gen"] = drawn.seconds
        self._batch, self._position = drawn.batch, (drawn.sampler_state, drawn.epoch)
        sizes = [*sizes, *(stop - start for start, stop, _ in drawn.pieces)]
        self._portions = Portions.for_sizes(len(drawn.batch.prompts), sizes, self.processor.pad_token_id)
        ages = []
        for start, stop, experience in drawn.pieces:
            self._portions.put(start, stop, experience)
            ages += [step.number - 1 - version for version in experience.weight_versions]
        step.record({"rollout/staleness/mean": sum(ages) / len(ages), "rollout/staleness/max": max(ages)})

    def _bind(self, verb: Callable[..., Any]) -> Callable[[Item], None]:
        """Let a verb work on the rows of a portion, those of the first stage apart: it makes them."""
        if verb is RlRun.sample:
            return lambda item: self._portions.put(item.start, item.stop, self.sample(item))

        def run(item: Item) -> None:
            with self._portions.view(item.start, item.stop) as experience:
                verb(self, experience, item)

        return run

    # ----------------------------------------------------------------- the steps
    def steps(self) -> Iterator[Step]:
        """Begin (or resume) training and give its steps one by one."""
        self._update_rollout(self.first_step - 1)
        if self.config.flow.asynchronous.enable:
            self._ahead = self._sample_ahead()
        try:
            yield from self._steps()
        finally:
            self.scaler.close()
            if self._ahead is not None:
                self._ahead.close()
        self.store.finish()

    def _steps(self) -> Iterator[Step]:
        if self.config.trainer.val_before_train and self.first_step == 1:
            opening = Step(0)
            self.validate(opening)
            self.tracker.log(opening.metrics, 0)
        for number in range(self.first_step, self.plan.total_steps + 1):
            hooks.fire("before_train_step", context={"step": number})
            profiled = number in self.config.trainer.profile_steps
            if profiled:
                self.actor.profile(True)
            self.store.check()
            self.scaler.between_steps(number)
            if self.follower is not None:
                self.follower.between_steps(self, number)
            yield Step(number)
            if profiled:
                self.actor.profile(False)
            hooks.fire("after_train_step", context={"step": number})

    def _sample_ahead(self) -> Ahead:
        return Ahead(
            self.data,
            self._generate_held,
            lambda: self.rollout.weight_version,
            first=self.first_step,
            last=self.plan.total_steps,
            chunk=self.config.flow.chunk or self.config.data.train_batch_size,
            max_staleness=self.config.flow.asynchronous.max_staleness,
        )

    def sync_weights(self, step: Step) -> None:
        """Bring the new weights to the rollout, as the version of this step."""
        self._update_rollout(step.number)
        hooks.fire("on_weights_synced", context={"version": step.number})

    def finish(self, step: Step, experience: Experience) -> None:
        """Validate and save where it is due, then log the step."""
        if self.follower is not None:
            self.follower.observe(self, step, self._record)
        trainer, last = self.config.trainer, step.number == self.plan.total_steps
        validates = last or (trainer.test_freq > 0 and step.number % trainer.test_freq == 0)
        saves = trainer.save_freq > 0 and (last or step.number % trainer.save_freq == 0)
        if validates and self.data.val.records:
            with step.timed("testing"):
                self.validate(step)
        if saves:
            with step.timed("save_checkpoint"):
                self.save(step)
        if validates or saves:
            rows = [{**row, "split": "train"} for row in experience.sample_rows(TRAIN_SAMPLES)]
            self.tracker.log_samples(rows, step.number)
        self._log(step, experience)

    # ----------------------------------------------------------------- validation and checkpoints
    def validate(self, step: Step) -> None:
        """Measure the current weights on the held-out prompts."""
        if not self.data.val.records:
            return
        with self.residency.using("rollout"):
            validation = validate(
                self.config, self.rollout, self.data, self.processor, self.reward, step.number, self.tracker.progress
            )
        self.validations.append(validation)
        step.record(validation.metrics)
        self.tracker.log_samples(validation.samples, step.number)

    def save(self, step: Step) -> None:
        """Write a checkpoint of this step: it appears only when it is whole."""
        with self.store.write(step.number) as directory:
            progress = self._progress()
            with self.residency.using("actor"):
                self.actor.save(directory, step.number, progress)
            if self.components.critic is not None:
                with self.residency.using("critic"):
                    self.components.critic.save(directory / CRITIC, step.number, progress)
            write_json(directory / PRETRAINED / TRAIN_CONFIG, redact(self.config.model_dump(mode="json")))
            save_state(
                directory, step=step.number, sampler_state=self._position[0], kl_controller=self.kl_controller
            )

    def resume(self, checkpoint: Any) -> None:
        """Go on from a verified checkpoint: weights, optimizers, schedules, random states, data position."""
        self.store.protect(checkpoint)
        progress = self._progress()
        with self.residency.using("actor"):
            self.actor.load(checkpoint, progress)
        if self.components.critic is not None:
            with self.residency.using("critic"):
                self.components.critic.load(checkpoint / CRITIC, progress)
        step = load_state(checkpoint, sampler=self.data.sampler, kl_controller=self.kl_controller)
        self.first_step = step + 1

    # ----------------------------------------------------------------- details
    def _update_rollout(self, version: int) -> None:
        with self.residency.using("actor", "rollout", weights_of=("actor",)):
            self.rollout.update_weights(self.actor, version)
        if self._ahead is not None:
            self._ahead.weights_changed()
        if "actor" in self.config.flow.swapped:
            self.residency.unload("actor")

    def _progress(self) -> dict[str, Any]:
        """What a checkpoint records of this run beside what the engines know."""
        return {
            "batch_size": self.config.data.train_batch_size,
            "grad_accum_steps": 1,
            "epoch": self._position[1],
            "seed": self.config.trainer.seed,
            "tracker_run_id": self.tracker.run_id,
        }

    def _log(self, step: Step, experience: Experience) -> None:
        step.stop_clock()
        tensors = experience.tensors
        step.record(
            data_metrics(
                token_scores=tensors["token_scores"],
                token_rewards=tensors["token_rewards"],
                advantages=tensors["advantages"],
                returns=tensors["returns"],
                response_mask=experience.response_mask,
                prompt_lengths=experience.prompt_lengths,
                prompt_width=self.config.data.max_prompt_length,
                response_width=self.config.data.max_response_length,
                values=tensors.get("values"),
            )
        )
        step.record(
            timing_metrics(
                step.seconds,
                prompt_lengths=experience.prompt_lengths,
                response_lengths=experience.response_mask.sum(-1),
                num_devices=self.components.num_devices,
            )
        )
        step.record(
            {
                "training/global_step": step.number,
                "training/epoch": self._position[1],
                "training/weight_version": self.rollout.weight_version,
            }
        )
        for name, values in experience.reward_components().items():
            step.record({f"reward/{name}/mean": values.mean().item()})
        self.tracker.log(step.metrics, step.number)


def rl_plan(config: RunConfig, num_prompts: int, actor_ranks: int) -> RunPlan:
    """Return the arithmetic of the run. Raises ConfigError naming the keys that do not fit."""
    return plan_run(
        num_rows=num_prompts,
        train_batch_size=config.data.train_batch_size,
        ppo_mini_batch_size=config.actor.ppo_mini_batch_size,
        n=config.rollout.n,
        devices=actor_ranks,
        ppo_epochs=config.actor.ppo_epochs,
        total_epochs=config.trainer.total_epochs,
        total_training_steps=config.trainer.total_training_steps,
    )
