"""Policy optimisation without a critic: GRPO, and by ``algorithm.adv_estimator`` RLOO, REINFORCE++, ReMax, OPO, GPG.

Source: Shao et al., DeepSeekMath, arXiv:2402.03300; the estimators name their own.
"""

from __future__ import annotations

from plugrl.runners.rl import RlRun


def train_grpo(run: RlRun) -> None:
    """Train until the last step: sample, reward, log-probabilities, advantages, update, sync, validate, save, log."""
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
        with step.timed("adv"):
            run.add_advantages(step, experience)
        with step.timed("update_actor"):
            run.update_actor(step, experience)
        with step.timed("update_weights"):
            run.sync_weights(step)
        run.finish(step, experience)
