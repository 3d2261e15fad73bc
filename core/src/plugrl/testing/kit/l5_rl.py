"""L5: reinforcement learning on the platform, by the runner that users start: steps, weights, resuming."""

from __future__ import annotations

from plugrl.testing.kit import rl_smoke
from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import Context

DEADLINE_S = 2 * rl_smoke.START_S + 120.0
LOG_PROB_TOLERANCE = 1e-4
"""Between sampling and recomputation in fp32: both compute alike, but in batches of other shapes."""


@check(
    "L5.grpo.three_steps",
    capability="rl.grpo",
    gate=True,
    deadline_s=DEADLINE_S,
    fix="Run `plugrl train` on a small configuration and read its error; L1 to L4 tell what it builds on.",
)
def three_steps(kit: Context) -> str:
    """Three steps of GRPO with a tiny policy: every metric is finite, gradients flow, and the weights change."""
    run = rl_smoke.whole_run(kit)
    expect_equal(sorted(run.metrics), list(range(1, rl_smoke.STEPS + 1)), "the steps that were logged")
    wrong = rl_smoke.not_finite(run.metrics)
    expect(not wrong, f"metrics are not finite: {', '.join(wrong[:4])}")
    for step, row in run.metrics.items():
        expect(row["actor/grad_norm"] > 0, f"the gradient of step {step} is zero")
    expect(run.before != run.after, "the weights are what they were before training")
    rewards = " ".join(f"{row['critic/rewards/mean']:.3f}" for row in run.metrics.values())
    return f"rewards {rewards}"


@check(
    "L5.grpo.first_ratio",
    capability="rl.grpo",
    deadline_s=DEADLINE_S,
    fix="The rollout and the engine must compute alike: same dtype, same attention, the same weights.",
)
def first_ratio(kit: Context) -> str:
    """Log-probabilities recomputed for training are those of sampling, so that the first ratio is 1."""
    run = rl_smoke.whole_run(kit)
    largest = {step: row["training/rollout_probs_diff_max"] for step, row in run.metrics.items()}
    for step, difference in largest.items():
        found = f"in step {step} a probability differs by {difference:.1e}, allowed is {LOG_PROB_TOLERANCE:g}"
        expect(difference <= LOG_PROB_TOLERANCE, found)
    return f"largest difference {max(largest.values()):.1e}"


@check(
    "L5.weight_sync.bit_equal",
    capability="rl.weight_sync",
    deadline_s=DEADLINE_S,
    fix="get_per_tensor_param() of the engine must stream the weights as they are after the last step.",
)
def weights_agree(kit: Context) -> str:
    """After the last synchronisation every rollout worker has the trainer's weights, bit for bit."""
    run = rl_smoke.whole_run(kit)
    for index, found in enumerate(run.rollout):
        wrong = [name for name in sorted(run.after) if found.get(name) != run.after[name]]
        stale = " (it has those from before training)" if found == run.before else ""
        total = len(run.after)
        text = f"rollout worker {index} has other weights{stale}: {len(wrong)} of {total}, such as {wrong[:2]}"
        expect(not wrong, text)
    return f"{len(run.after)} tensors"


@check(
    "L5.resume.exact",
    capability="rl.resume",
    deadline_s=DEADLINE_S,
    fix="A checkpoint must restore weights, optimizer state, schedule and the random state of the device.",
)
def resume_is_exact(kit: Context) -> str:
    """A run that is resumed from step 1 has the metrics and the weights of the one without interruption, to the bit."""
    whole, resumed = rl_smoke.whole_run(kit), rl_smoke.resumed_run(kit)
    later = list(range(rl_smoke.RESUMED_FROM + 1, rl_smoke.STEPS + 1))
    expect_equal(sorted(resumed.metrics), later, "the steps of the resumed run")
    for step in later:
        wrong = rl_smoke.differences(resumed.metrics[step], whole.metrics[step])
        expect(not wrong, f"step {step} differs: {', '.join(wrong[:3])}")
    wrong = rl_smoke.differences(resumed.after, whole.after)
    expect(not wrong, f"{len(wrong)} of {len(whole.after)} tensors differ at the end, such as {wrong[:1]}")
    return f"steps {later[0]} to {later[-1]}"


@check("L5.session.ends", deadline_s=90)
def session_ends(kit: Context) -> None:
    """The session of the runs ends."""
    rl_smoke.end_session(kit)
