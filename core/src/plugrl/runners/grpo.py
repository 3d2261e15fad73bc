"""Policy optimisation without a critic: GRPO, and by ``algorithm.adv_estimator`` RLOO, REINFORCE++, ReMax, OPO, GPG.

Source: Shao et al., DeepSeekMath, arXiv:2402.03300; the estimators name their own.
"""

from __future__ import annotations

from plugrl.runners.needs import Needs
from plugrl.runners.rl import RlRun
from plugrl.runners.rl_flow import Stages
from plugrl.runtime.flow import DRIVER


def experience_stages(needs: Needs) -> Stages:
    """What every loop begins with: sample, reward, log-probabilities."""
    step = Stages()
    step.add("gen", "rollout", RlRun.sample)
    step.add("reward", DRIVER, RlRun.score, after="gen")
    if needs.baselines:
        step.add("gen_max", "rollout", RlRun.sample_greedily, after="gen")
        step.add("reward_max", DRIVER, RlRun.add_greedy_baselines, after="gen_max")
    if needs.old_log_probs:
        step.add("old_log_prob", needs.old_log_probs_from, RlRun.add_old_log_probs, after="gen")
    if needs.config.uses_reference:
        step.add("ref", needs.reference_from, RlRun.add_reference_log_probs, after="gen")
    return step


def grpo_stages(needs: Needs) -> Stages:
    """The experience, advantages, update; devices and ``flow`` decide what of it overlaps."""
    step = experience_stages(needs)
    step.add("adv", DRIVER, RlRun.add_advantages, after=step.names, size=needs.update_size, why=needs.why_whole)
    step.add("update_actor", "actor", RlRun.update_actor, after="adv", size=needs.update_size, why=needs.why_whole)
    return step


def train_grpo(run: RlRun) -> None:
    """Train until the last step: the stages above, then sync, validate, save, log."""
    run.arrange(grpo_stages)
    for step in run.steps():
        experience = run.flow(step)
        with step.timed("update_weights"):
            run.sync_weights(step)
        run.finish(step, experience)
