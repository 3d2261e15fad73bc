"""The loop of environments and policy without Ray: what is learned, what counts, and what it does not depend on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from local_run import LocalRun

from plugrl.errors import ConfigError, UserError
from plugrl.runners.embodied_episodes import episode_metrics
from plugrl.runners.embodied_rows import make_rows
from plugrl.workers.embodied.building import build_env
from plugrl.workers.embodied.filming import FilmOrder

GRPO = ("algorithm.adv_estimator=grpo", "env.train.group_size=8", "env.train.auto_reset=false",
        "env.train.max_steps_per_rollout_epoch=8", "actor.ppo_mini_batch_size=64")  # fmt: skip


def success(reports: Any) -> float:
    return episode_metrics([record for report in reports for record in report.episodes], "x").get("x/success_once", 0.0)


def test_ppo_learns_to_walk_and_its_first_ratio_is_one(corridor: Any) -> None:
    run = LocalRun(corridor("rollout.temperature=0.8"))
    before = success(run.evaluate())
    for number in range(1, 9):
        trajectory, metrics, reports = run.step(number)
        assert metrics[0]["actor/ratio"].value == pytest.approx(1.0, abs=1e-5), f"step {number}"
        assert metrics[0]["actor/ppo_kl"].value == pytest.approx(0.0, abs=1e-5)
        assert trajectory.versions.unique().tolist() == [number - 1]
    assert before < 0.2 and success(reports) > 0.7, (before, success(reports))
    assert success(run.evaluate()) > 0.9
    assert metrics[-1]["lr"].value == pytest.approx(3e-3)


def test_grpo_learns_and_masks_what_comes_after_the_end(corridor: Any) -> None:
    run = LocalRun(corridor(*GRPO))
    for number in range(1, 9):
        trajectory, metrics, reports = run.step(number)
        ended = trajectory.dones[1:, :, 0].int().argmax(0)
        assert trajectory.executed[..., 0].sum(0).tolist() == (ended + 1).tolist(), "actions up to the end, and no more"
        assert len([record for report in reports for record in report.episodes]) == 32, "one episode of each scene"
        assert metrics[0]["actor/ratio"].value == pytest.approx(1.0, abs=1e-5)
    assert success(reports) > 0.8
    starts = trajectory.forward_inputs["states"][0].reshape(4, 8)
    assert (starts == starts[:, :1]).all() and len(starts[:, 0].unique()) == 4, "members of a group begin alike"


def test_numbers_do_not_depend_on_workers_and_stages_that_cut_the_same_slices(corridor: Any) -> None:
    ways = [("rollout.pipeline_stage_num=2", 1, 1), ("rollout.pipeline_stage_num=1", 2, 2),
            ("rollout.pipeline_stage_num=1", 2, 1)]  # fmt: skip
    found = []
    for stages, workers, rollouts in ways:
        config = corridor(stages, "env.train.rollout_epoch=2", "actor.ppo_mini_batch_size=256")
        run = LocalRun(config, workers, rollouts)
        trajectory, metrics, _ = run.step(1)
        found.append((trajectory, metrics[-1]["actor/loss"].value, run.interact(2)[0].rewards))
    for trajectory, loss, later in found[1:]:
        assert torch.equal(trajectory.rewards, found[0][0].rewards)
        assert torch.equal(trajectory.prev_logprobs, found[0][0].prev_logprobs)
        assert loss == found[0][1] and torch.equal(later, found[0][2])


def test_micro_batches_change_nothing_but_rounding(corridor: Any) -> None:
    losses = []
    for micro in (128, 24):
        run = LocalRun(corridor(f"actor.ppo_micro_batch_size_per_gpu={micro}", "actor.ppo_epochs=1"))
        _, metrics, _ = run.step(1)
        losses.append([(item["actor/loss"].value, item["grad_norm"].value) for item in metrics])
    assert torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4)


def test_a_step_that_is_repeated_gives_the_same_numbers(corridor: Any) -> None:
    """Seeds and draws follow from the step alone: that is what an exact resume rests on."""
    run = LocalRun(corridor())
    run.interact(1)
    first = run.interact(5)[0]
    again = LocalRun(corridor()).interact(5)[0]
    assert torch.equal(first.rewards, again.rewards) and torch.equal(first.prev_logprobs, again.prev_logprobs)
    assert not torch.equal(first.rewards, run.interact(6)[0].rewards)


def test_values_stand_in_for_what_time_cut_off_and_for_nothing_else(corridor: Any) -> None:
    config = corridor()
    trajectory, _ = LocalRun(config).interact(1)
    cut = trajectory.truncations[1:, :, 0]
    assert trajectory.bootstrap_values is not None and cut.any()
    assert (trajectory.bootstrap_values[~cut] == 0).all() and (trajectory.bootstrap_values[cut] != 0).any()
    masked, _ = LocalRun(corridor(*GRPO)).interact(1)
    assert masked.bootstrap_values is None or not masked.bootstrap_values.any()


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_a_dead_simulator_costs_its_episode_and_nothing_else(corridor: Any, estimator: str) -> None:
    change = GRPO if estimator == "grpo" else ()
    whole = LocalRun(corridor(*change))
    lossy = LocalRun(corridor(*change, "env.train.env_type=lossy_corridor", "env.train.init_params.dies_at=3"))
    good, _ = whole.interact(1)
    found, reports = lossy.interact(1)
    records = [record for report in reports for record in report.episodes]
    lost = [record for record in records if record.dropped]
    assert sorted(record.index for record in lost) == [0, 16], "one in each of the two stages"
    assert not found.valid[:3, [0, 16]].any()
    others = [scene for scene in range(32) if scene not in (0, 16)]
    assert found.valid[:, others].all() and torch.equal(found.rewards[:, others], good.rewards[:, others])
    assert episode_metrics(records, "env")["env/num_dropped"] == 2
    rows = make_rows(found, lossy.config)
    counted = rows.kept.reshape(-1) % 32
    assert (counted == 0).sum() == (0 if estimator == "grpo" else 13), "rows of the lost episode are not learned from"
    lossy.learn(rows, 1)


def test_groups_outside_the_bounds_are_left_out_and_a_step_without_any_is_skipped(corridor: Any) -> None:
    bounds = ("algorithm.filter_groups.enable=true", "algorithm.rewards_lower_bound=50")
    run = LocalRun(corridor(*GRPO, *bounds))
    trajectory, _ = run.interact(1)
    rows = make_rows(trajectory, run.config)
    before = {name: tensor.clone() for name, tensor in run.learner.engine.module.state_dict().items()}
    assert len(rows.kept) == 0 and rows.metrics["rollout/filtered_scenes"] == 1.0
    metrics = run.learn(rows, 1)
    assert [set(item) for item in metrics] == [{"lr"}], "no optimizer step"
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.learner.engine.module.state_dict().items())


def test_chunks_of_actions_count_up_to_the_end(corridor: Any) -> None:
    chunks = ("model.num_action_chunks=4", "algorithm.reward_type=chunk_level", "actor.ppo_mini_batch_size=32")
    run = LocalRun(corridor(*chunks))
    for number in range(1, 4):
        trajectory, metrics, _ = run.step(number)
    assert trajectory.rewards.shape == (4, 32, 4) and trajectory.prev_logprobs.shape == (4, 32, 4, 1)
    assert metrics[0]["actor/ratio"].value == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(UserError, match="algorithm.reward_type"):
        make_rows(trajectory, corridor(*chunks[:1], "actor.ppo_mini_batch_size=32"))


def test_losses_normalised_by_length_weigh_every_episode_alike(corridor: Any) -> None:
    run = LocalRun(corridor(*GRPO, "actor.loss_agg_mode=seq-mean-token-mean"))
    trajectory, _ = run.interact(1)
    rows = make_rows(trajectory, run.config)
    sums = rows.tensors.arrays["mask_sums"][0].reshape(8, 32)
    assert torch.equal(torch.from_numpy(sums[0]), trajectory.executed.sum((0, 2)).float())
    assert run.learn(rows, 1)


def test_actions_that_do_not_fit_are_named(corridor: Any) -> None:
    config = corridor("model.action_dim=3")
    words = "model.action_dim: the policy's actions have 3 numbers, but those of env.train.env_type=corridor have 1"
    with pytest.raises(ConfigError, match=words):
        build_env(config, config.env.train, 2, "env.train")


def test_a_policy_without_log_probabilities_is_told_what_to_do(
    corridor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun(corridor())
    kind = type(run.actings[0].backend.acting())
    own = kind.predict_action_batch

    def without(self: Any, *args: Any, **kwargs: Any) -> Any:
        actions, result = own(self, *args, **kwargs)
        return actions, {**result, "prev_logprobs": None}

    monkeypatch.setattr(kind, "predict_action_batch", without)
    with pytest.raises(UserError, match="gives no log-probabilities.*plugrl sft"):
        run.step(1)


def test_an_environment_without_pictures_is_measured_without_videos(corridor: Any, tmp_path: Any, caplog: Any) -> None:
    config = corridor("env.eval.videos=2")
    run = LocalRun(config)
    order = FilmOrder(str(tmp_path / "videos"), 2, "step000001_")
    run.envs[0].evaluate, evaluate = (lambda: evaluate(order)), run.envs[0].evaluate
    assert len([record for report in run.evaluate() for record in report.episodes]) == 16
    assert "no videos" in caplog.text and not list(tmp_path.glob("videos/*.mp4"))
