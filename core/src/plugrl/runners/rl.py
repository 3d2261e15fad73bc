"""The verbs of a reinforcement-learning loop, of which :mod:`plugrl.runners.grpo` and its neighbours are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from plugrl.algorithms import get_advantage, kl_penalty_in_reward, make_kl_controller, overlong_penalty
from plugrl.checkpoints import CheckpointStore, write_json
from plugrl.checkpoints.layout import PRETRAINED
from plugrl.config.schema import RunConfig
from plugrl.data.run_plan import RunPlan, plan_run
from plugrl.engines.base import BatchOptions
from plugrl.errors import WeightSyncError
from plugrl.models.processor import TextProcessor
from plugrl.plugins import hooks
from plugrl.rewards.manager import RewardManager
from plugrl.runners.ahead import Ahead
from plugrl.runners.components import Components
from plugrl.runners.config_path import TRAIN_CONFIG
from plugrl.runners.devices import rl_residency
from plugrl.runners.experience import Experience, collect
from plugrl.runners.needs import PROBABILITIES, Needs
from plugrl.runners.portions import Portions
from plugrl.runners.prompts import PromptBatch, PromptData
from plugrl.runners.rl_flow import Declare, arrange_rl, bound, print_flow, without_stage
from plugrl.runners.state import CRITIC, load_state, save_state
from plugrl.runners.step import Step
from plugrl.runners.validation import Validation, sampling_params, validate
from plugrl.runtime.flow import Arrangement, Item, run_flow
from plugrl.tracking.metrics import data_metrics, rollout_difference_metrics, timing_metrics
from plugrl.tracking.redact import redact
from plugrl.tracking.tracker import Tracker
from plugrl.workers.dispatch import num_rows, take
from plugrl.workers.groups import RankMetrics, RolloutGroup, TrainingGroup
from plugrl.workers.objectives import PolicyObjective, ValueObjective

_INPUTS = ("input_ids", "attention_mask", "response_mask")
TRAIN_SAMPLES = 4
"""Training generations that are logged at each step with a validation or a checkpoint."""


class RlRun:
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
    ) -> None:
        assert components.actor is not None and components.rollout is not None
        self.config = config
        self.components = components
        self.actor: TrainingGroup = components.actor
        self.rollout: RolloutGroup = components.rollout
        self.data = data
        self.processor = processor
        self.reward = reward
        self.tracker = tracker
        self.store = store
        self.plan = plan
        self.kl_controller = make_kl_controller(**config.algorithm.kl_ctrl.model_dump())
        self.first_step = 1
        self.validations: list[Validation] = []
        self.needs = Needs(config)
        self.residency = rl_residency(config, components)
        self._arrangement: Arrangement
        self._step: Step
        self._batch: PromptBatch
        self._portions: Portions
        self._ahead: Ahead | None = None
        self._position = (self.data.sampler.state_dict(), self.data.sampler.epoch)
        self._greedy: dict[int, Experience] = {}
        self._updates: dict[str, list[list[RankMetrics]]] = {}

    # ----------------------------------------------------------------- the flow of a step
    def arrange(self, declare: Declare) -> None:
        """Put the stages of a step in their places; :meth:`flow` then runs them."""
        stages = bound(declare(self.needs), self._bind)
        if self.config.flow.asynchronous.enable:
            stages = without_stage(stages, "gen")
        self._arrangement = arrange_rl(self.config, stages, self.components.devices)
        print_flow(self._arrangement)

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
        self._greedy, self._updates = {}, {}
        record = run_flow(
            arrangement.stages,
            arrangement.total,
            using=lambda item: self.residency.using(item.stage.component),
            transfers={"load": self.residency.load, "unload": self.residency.unload},
            max_ahead=arrangement.max_ahead,
        )
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

    # ----------------------------------------------------------------- the verbs, each for a portion of the prompts
    def sample(self, item: Item) -> Experience:
        """Draw ``rollout.n`` responses to each prompt of the portion."""
        return self._generate(self._batch, item.start, item.stop)

    def score(self, experience: Experience, item: Item) -> None:
        """Judge the responses."""
        experience.add_scores(
            self.reward.score_batch(
                experience.texts,
                [record.ground_truth for record in experience.records],
                [record.extra_info for record in experience.records],
                note=False,
            )
        )
        overlong, limit = self.config.reward.overlong_buffer, self.config.data.max_response_length
        if overlong.enable:
            lengths = experience.response_mask.sum(-1)
            penalty = overlong_penalty(lengths, limit, buffer=overlong.len, factor=overlong.penalty_factor)
            experience.add_penalty("overlong_penalty", penalty)

    def sample_greedily(self, experience: Experience, item: Item) -> None:
        """Take the one most likely response to each prompt, for :meth:`add_greedy_baselines`."""
        self._greedy[item.start] = self._generate(self._batch, item.start, item.stop, greedy=True)

    def add_greedy_baselines(self, experience: Experience, item: Item) -> None:
        """Add ``baselines`` [B]: the reward of the greedy response to each row's prompt."""
        greedy = self._greedy.pop(item.start)
        self.score(greedy, item)
        scores = torch.tensor([result.score for result in greedy.results])
        experience.tensors["baselines"] = scores[torch.tensor(experience.group_ids) - item.start]

    def add_old_log_probs(self, experience: Experience, item: Item) -> None:
        """Add ``old_log_probs`` [B, T]: recomputed by the actor, or taken from the rollout where so configured.

        An estimator that asks for it also gets ``sum_pi_squared`` [B, T], which only the actor can compute.
        """
        tensors = experience.tensors
        if self.needs.recomputed_log_probs:
            squared = self.needs.squared_probabilities
            options = self._log_prob_options(**({"compute_sum_pi_squared": True} if squared else {}))
            outputs = self.actor.infer(experience.select(*_INPUTS), options)
            tensors["recomputed_log_probs"] = tensors["old_log_probs"] = outputs["logprobs"]
            if squared:
                tensors["sum_pi_squared"] = outputs["sum_pi_squared"]
        if self.config.actor.use_rollout_log_probs is True:
            tensors["old_log_probs"] = tensors["rollout_log_probs"]

    def add_reference_log_probs(self, experience: Experience, item: Item) -> None:
        """Add ``ref_log_probs`` [B, T] of the frozen policy that training started from."""
        ref = self.config.ref
        options = BatchOptions(
            micro_batch_size=ref.log_prob_micro_batch_size_per_gpu,
            max_tokens=ref.log_prob_max_token_len_per_gpu if ref.log_prob_use_dynamic_bsz else None,
            forward_kwargs={"temperature": self.config.rollout.temperature},
        )
        group = self.components.ref or self.actor
        outputs = group.infer(experience.select(*_INPUTS), options, adapter=group is not self.actor)
        experience.tensors["ref_log_probs"] = outputs["logprobs"]

    def add_values(self, experience: Experience, item: Item) -> None:
        """Add ``values`` [B, T] of the critic, which learns from them later."""
        assert self.components.critic is not None
        outputs = self.components.critic.infer(experience.select(*_INPUTS), self._critic_options())
        experience.tensors["values"] = outputs["values"]

    def add_advantages(self, experience: Experience, item: Item) -> None:
        """Add ``advantages`` and ``returns`` [B, T]; the KL penalty, if any, is first taken off the rewards."""
        tensors, settings = experience.tensors, self.config.algorithm
        if settings.use_kl_in_reward:
            tensors["token_rewards"], metrics = kl_penalty_in_reward(
                tensors["token_scores"], tensors["old_log_probs"], tensors["ref_log_probs"], experience.response_mask,
                beta=self.kl_controller.value, kind=settings.kl_penalty,
            )  # fmt: skip
            self._step.record({name: float(value) for name, value in metrics.items()})
            self.kl_controller.update(float(metrics["actor/reward_kl_penalty"]), len(experience))
        tensors["advantages"], tensors["returns"] = get_advantage(settings.adv_estimator)(
            tensors["token_rewards"],
            experience.response_mask,
            group_ids=experience.group_ids,
            values=tensors.get("values"),
            baselines=tensors.get("baselines"),
            gamma=settings.gamma,
            lam=settings.lam,
            norm_adv_by_std_in_grpo=settings.norm_adv_by_std_in_grpo,
            **self._estimator_options(experience),
        )

    def update_critic(self, experience: Experience, item: Item) -> None:
        """Fit the critic to the returns."""
        assert self.components.critic is not None
        batch = experience.select(*_INPUTS, "values", "returns")
        count = self.config.data.train_batch_size // self.config.critic.ppo_mini_batch_size
        metrics = self.components.critic.train(
            _mini_batches(batch, count) * self.config.critic.ppo_epochs,
            ValueObjective(config=self.config.critic, max_response_length=self.config.data.max_response_length),
            self._critic_options(),
        )
        self._step.record({name if "/" in name else f"critic/{name}": value for name, value in metrics.items()})

    def update_actor(self, experience: Experience, item: Item) -> None:
        """Improve the policy: one optimizer step for each mini-batch, once the critic is warm."""
        actor = self.config.actor
        if self._step.number <= self.config.trainer.critic_warmup:
            return
        names = ["advantages"] + (["ref_log_probs"] if actor.use_kl_loss else [])
        if self.needs.old_log_probs:
            names.append("old_log_probs")
        options = BatchOptions(
            micro_batch_size=actor.ppo_micro_batch_size_per_gpu,
            max_tokens=actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else None,
            forward_kwargs={"temperature": self.config.rollout.temperature, "compute_entropy": True},
        )
        batch = experience.select(*_INPUTS, *names)
        if self.config.algorithm.filter_groups.enable:
            rows = experience.informative_rows()
            self._step.record({"training/informative_groups": len(rows) / len(experience)})
            batch = take(batch, rows)
        count = min((item.stop - item.start) // actor.ppo_mini_batch_size, num_rows(batch) // self.actor.group.size)
        # With all advantages 0 only the optimizer's momentum would act: then there is no optimizer step.
        mini_batches = _mini_batches(batch, count) * actor.ppo_epochs if count else []
        objective = PolicyObjective(config=actor, max_response_length=self.config.data.max_response_length)
        last = item.stop == self.config.data.train_batch_size
        parts = self._updates.setdefault("actor", [])
        parts.append(self.actor.train_some(mini_batches, objective, options, last=last))
        if last:
            metrics = self.actor.metrics(parts)
            self._step.record({name if "/" in name else f"actor/{name}": value for name, value in metrics.items()})

    def sync_weights(self, step: Step) -> None:
        """Bring the new weights to the rollout, as the version of this step."""
        self._update_rollout(step.number)
        hooks.fire("on_weights_synced", context={"version": step.number})

    def finish(self, step: Step, experience: Experience) -> None:
        """Validate and save where it is due, then log the step."""
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

    def _estimator_options(self, experience: Experience) -> dict[str, Any]:
        options = dict(self.config.algorithm.options)
        keywords = self.needs.estimator_keywords
        if "reward_components" in keywords:
            options["reward_components"] = experience.reward_components()
        options |= {name: experience.tensors[name] for name in keywords & PROBABILITIES}
        return options

    def _generate(self, batch: PromptBatch, start: int, stop: int, *, greedy: bool = False) -> Experience:
        """Draw responses to some prompts; all of them by the weights that the rollout is known to have."""
        rows = slice(start, stop)
        params = sampling_params(self.config, self.processor, greedy=greedy)
        completions = self.rollout.generate(batch.prompts[rows], params, batch.seeds[rows])
        experience = collect(batch.records[rows], batch.prompts[rows], completions, self.processor, start)
        strange = {version for version in experience.weight_versions if version != self.rollout.weight_version}
        if strange:
            raise WeightSyncError(
                f"Samples were made with weights of version {sorted(strange)}, expected {self.rollout.weight_version}."
            )
        return experience

    def _generate_held(self, batch: PromptBatch, start: int, stop: int) -> Experience:
        """Draw responses beside training: new weights come before or after, never in between."""
        with self.residency.using("rollout"):
            return self._generate(batch, start, stop)

    def _log_prob_options(self, **forward_kwargs: Any) -> BatchOptions:
        rollout = self.config.rollout
        return BatchOptions(
            micro_batch_size=rollout.log_prob_micro_batch_size_per_gpu,
            max_tokens=rollout.log_prob_max_token_len_per_gpu if rollout.log_prob_use_dynamic_bsz else None,
            forward_kwargs={"temperature": rollout.temperature, **forward_kwargs},
        )

    def _critic_options(self) -> BatchOptions:
        critic = self.config.critic
        return BatchOptions(
            micro_batch_size=critic.ppo_micro_batch_size_per_gpu,
            max_tokens=critic.ppo_max_token_len_per_gpu if critic.use_dynamic_bsz else None,
        )


def _mini_batches(batch: dict[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """Cut a batch into ``count`` mini-batches of (nearly) equal size, in order."""
    return [take(batch, part) for part in torch.arange(num_rows(batch)).tensor_split(count)]


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
