"""The verbs of a reinforcement-learning loop, of which :mod:`plugrl.runners.grpo` and its neighbours are made."""

from __future__ import annotations

from typing import Any

import torch

from plugrl.algorithms import get_advantage, kl_penalty_in_reward, make_kl_controller, overlong_penalty
from plugrl.config.schema import RunConfig
from plugrl.engines.base import BatchOptions
from plugrl.errors import WeightSyncError
from plugrl.models.processor import TextProcessor
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import Components
from plugrl.runners.devices import rl_residency
from plugrl.runners.experience import Experience, collect
from plugrl.runners.needs import PROBABILITIES, Needs
from plugrl.runners.prompts import PromptBatch
from plugrl.runners.step import Step
from plugrl.runners.validation import sampling_params
from plugrl.runtime.flow import Item
from plugrl.workers.dispatch import num_rows, take
from plugrl.workers.groups import RankMetrics, RolloutGroup, TrainingGroup
from plugrl.workers.objectives import PolicyObjective, ValueObjective

_INPUTS = ("input_ids", "attention_mask", "response_mask")


class RlVerbs:
    """What can be done with the rows of a step; each verb works on a portion of its prompts.

    Those of different components run in threads of their own, see :mod:`plugrl.runtime.flow`.
    """

    def __init__(
        self, config: RunConfig, components: Components, processor: TextProcessor, reward: RewardManager
    ) -> None:
        assert components.actor is not None and components.rollout is not None
        self.config = config
        self.components = components
        self.actor: TrainingGroup = components.actor
        self.rollout: RolloutGroup = components.rollout
        self.processor = processor
        self.reward = reward
        self.needs = Needs(config)
        self.kl_controller = make_kl_controller(**config.algorithm.kl_ctrl.model_dump())
        self.residency = rl_residency(config, components)
        self._step: Step
        self._batch: PromptBatch
        self._greedy: dict[int, Experience] = {}
        self._updates: list[list[RankMetrics]] = []

    # ----------------------------------------------------------------- the verbs
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
        count = min((item.stop - item.start) // actor.ppo_mini_batch_size, num_rows(batch) // self.actor.num_shares)
        # With all advantages 0 only the optimizer's momentum would act: then there is no optimizer step.
        mini_batches = _mini_batches(batch, count) * actor.ppo_epochs if count else []
        objective = PolicyObjective(config=actor, max_response_length=self.config.data.max_response_length)
        last = item.stop == self.config.data.train_batch_size
        self._updates.append(self.actor.train_some(mini_batches, objective, options, last=last))
        if last:
            metrics = self.actor.metrics(self._updates)
            self._step.record({name if "/" in name else f"actor/{name}": value for name, value in metrics.items()})

    # ----------------------------------------------------------------- details
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
