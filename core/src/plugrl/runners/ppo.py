"""PPO with a critic: generalised advantages from a value model that is trained beside the policy.

Source: Schulman et al., arXiv:1707.06347 (PPO) and arXiv:1506.02438 (GAE).
"""

from __future__ import annotations

from plugrl.runners.grpo import experience_stages
from plugrl.runners.needs import Needs
from plugrl.runners.rl import RlRun
from plugrl.runners.rl_flow import Stages
from plugrl.runtime.flow import DRIVER


def ppo_stages(needs: Needs) -> Stages:
    """The experience, values, advantages, updates; devices and ``flow`` decide what of it overlaps."""
    step = experience_stages(needs)
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
