"""PPO with a critic: generalised advantages from a value model that is trained beside the policy.

Source: Schulman et al., arXiv:1707.06347 (PPO) and arXiv:1506.02438 (GAE).
"""

from __future__ import annotations

from plugrl.runners.rl import RlRun


def train_ppo(run: RlRun) -> None:
    """Train until the last step; in the first ``trainer.critic_warmup`` steps only the critic learns."""
    for step in run.steps():
        with step.timed("gen"):
            experience = run.sample(step)
        with step.timed("reward"):
            run.score(experience)
        if run.needs_baselines:
            with step.timed("gen_max"):
                run.add_greedy_baselines(step, experience)
        if run.needs_old_log_probs:
            with step.timed("old_log_prob"):
                run.add_old_log_probs(step, experience)
        if run.config.uses_reference:
            with step.timed("ref"):
                run.add_reference_log_probs(experience)
        with step.timed("values"):
            run.add_values(experience)
        with step.timed("adv"):
            run.add_advantages(step, experience)
        with step.timed("update_critic"):
            run.update_critic(step, experience)
        if step.number > run.config.trainer.critic_warmup:
            with step.timed("update_actor"):
                run.update_actor(step, experience)
            with step.timed("update_weights"):
                run.sync_weights(step)
        run.finish(step, experience)
