"""What a step of reinforcement learning needs, as the configuration alone decides it."""

from __future__ import annotations

from plugrl.algorithms import advantages as advantage_registry
from plugrl.algorithms.registry import GROUP_LOCAL, declared_keywords
from plugrl.config.schema import RunConfig
from plugrl.runtime.flow import DRIVER

PROBABILITIES = frozenset({"old_log_probs", "sum_pi_squared"})
"""What an estimator may ask for by declaring a keyword, besides the common ones."""


class Needs:
    """The questions that a loop asks before it names its stages."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        keywords = declared_keywords(advantage_registry.get(config.algorithm.adv_estimator))
        self.estimator_keywords = keywords if keywords is not None else frozenset[str]()

    @property
    def baselines(self) -> bool:
        """Whether the estimator compares with the reward of the greedy response (ReMax)."""
        return "baselines" in self.estimator_keywords

    @property
    def old_log_probs(self) -> bool:
        """Whether the log-probabilities at sampling must be known besides those of the update.

        With one optimizer step on the whole batch the policy is its own old policy: the ratio is exactly 1.
        """
        config = self.config
        if config.actor.use_rollout_log_probs != "auto" or self.estimator_keywords & PROBABILITIES:
            return True
        updates = config.data.train_batch_size // config.actor.ppo_mini_batch_size * config.actor.ppo_epochs
        return updates > 1 or config.algorithm.use_kl_in_reward

    @property
    def squared_probabilities(self) -> bool:
        """Whether the estimator asks for ``sum_pi_squared``, which only the actor can compute."""
        return "sum_pi_squared" in self.estimator_keywords

    @property
    def recomputed_log_probs(self) -> bool:
        """Whether the actor itself computes log-probabilities before it learns."""
        from_rollout = self.config.actor.use_rollout_log_probs is True
        return self.old_log_probs and (not from_rollout or self.squared_probabilities)

    @property
    def old_log_probs_from(self) -> str:
        """The component that the old log-probabilities are had from: the driver hands on those of the rollout."""
        return "actor" if self.recomputed_log_probs else DRIVER

    @property
    def reference_from(self) -> str:
        """The component that computes the reference's log-probabilities: the actor where an adapter is trained."""
        return "actor" if self.config.reference_is_actor else "ref"

    # ----------------------------------------------------------------- may training begin before the last sample?
    @property
    def why_whole(self) -> str:
        """Why advantages and updates wait for the whole batch; empty when a mini-batch may be trained on as it comes.

        It may where that changes no number: nothing of the step but its own rows enters its loss.
        """
        config = self.config
        if config.data.train_batch_size == config.actor.ppo_mini_batch_size:
            return "the whole batch is one mini-batch"
        if self.recomputed_log_probs:
            return "old log-probabilities come from the actor before it learns (actor.use_rollout_log_probs)"
        if config.algorithm.adv_estimator not in GROUP_LOCAL:
            return f"{config.algorithm.adv_estimator} looks at the whole batch (algorithm.adv_estimator)"
        reasons = {
            "the batch is filtered first (algorithm.filter_groups)": config.algorithm.filter_groups.enable,
            "the penalty follows the whole batch (algorithm.use_kl_in_reward)": config.algorithm.use_kl_in_reward,
            "the batch is passed over again (actor.ppo_epochs)": config.actor.ppo_epochs > 1,
            "the critic learns from the whole batch": config.uses_critic,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    @property
    def update_size(self) -> int:
        """Prompts that advantages and updates take at once."""
        flow, batch = self.config.flow, self.config.data.train_batch_size
        chunks = [flow.chunk, *(phase.chunk for phase in flow.phases)]
        streams = any(chunk is not None and chunk < batch for chunk in chunks)
        return self.config.actor.ppo_mini_batch_size if streams and not self.why_whole else batch
