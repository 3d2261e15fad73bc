"""PPO with a critic: generalised advantages from a value model that is trained beside the policy.

Source: Schulman et al., arXiv:1707.06347 (PPO) and arXiv:1506.02438 (GAE).
"""

from __future__ import annotations

from plugrl.runners.needs import Needs
from plugrl.runners.rl import RlRun
from plugrl.runners.rl_flow import Stages
from plugrl.runtime.flow import DRIVER


def ppo_stages(needs: Needs) -> Stages:
    """Sample, reward, log-probabilities, values, advantages, updates; devices and ``flow`` decide what overlaps."""
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
    step.add("values", "critic", RlRun.add_values, after="gen")
    step.add("adv", DRIVER, RlRun.add_advantages, after=step.names, size=needs.update_size, why=needs.why_whole)
    step.add("update_critic", "critic", RlRun.update_critic, after="adv", size=needs.update_size, why=needs.why_whole)
    step.add("update_actor", "actor", RlRun.update_actor, after="adv", size=needs.update_size, why=needs.why_whole)
    return step


def train_ppo(run: RlRun) -> None:
    """Train until the last step; in the first ``trainer.critic_warmup`` steps only the critic learns."""
    run.arrange(ppo_stages)
    for step in run.steps():
        experience = run.flow(step)
        if step.number > run.config.trainer.critic_warmup:
            with step.timed("update_weights"):
                run.sync_weights(step)
        run.finish(step, experience)
