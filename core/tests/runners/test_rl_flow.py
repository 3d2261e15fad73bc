"""One loop, any flow: the same numbers for every placement, portion and phase, from components that only compute."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plugrl.config.schema import FlowConfig, RunConfig
from plugrl.errors import ConfigError
from plugrl.metric import Metric
from plugrl.rollouts.base import Completion
from plugrl.runners.components import Components
from plugrl.runners.flow_table import check_flow, stages_of
from plugrl.runners.grpo import train_grpo
from plugrl.runners.ppo import train_ppo
from plugrl.runners.rl import RlRun, rl_plan
from plugrl.runtime.flow import FlowRecord

NO_RUN = Path("/nonexistent")
"""A run's folder that nobody asks anything through."""


class Tokenizer:
    """Characters as their code points."""

    pad_token_id = 0
    eos_token_ids = (10,)

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(96 + token) for token in tokens)


class Prompts:
    """Eight prompts a step, of different lengths."""

    def __init__(self) -> None:
        self.position = 0
        self.sampler = SimpleNamespace(epoch=0, state_dict=lambda: {"position": self.position})
        self.val = SimpleNamespace(records=[])

    def next_batch(self, step: int) -> Any:
        self.position = step
        prompts = [[1 + (step + i) % 9] * (1 + (5 * i + step) % 4) for i in range(8)]
        record = SimpleNamespace(ground_truth="", extra_info={}, text="")
        return SimpleNamespace(prompts=prompts, seeds=[step * 100 + i for i in range(8)], records=[record] * 8)


class Policy:
    """One weight; probabilities of a token follow from it and the token alone."""

    num_shares = 1

    def __init__(self, name: str, devices: tuple[int, ...]) -> None:
        self.group = SimpleNamespace(name=name, size=1, devices=devices, close=lambda: None)
        self.weight = 1.0
        self.calls: list[str] = []
        self.state = "all"

    def reside(self, state: str) -> None:
        self.state = state
        self.calls.append(state)

    def memory_mib(self) -> tuple[int, int]:
        return 20, 60

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        return -0.01 * tokens.double() * self.weight

    def infer(self, batch: Any, options: Any, *, adapter: bool = True) -> dict[str, torch.Tensor]:
        assert self.state == "all", "it computes while it is off-loaded"
        self.calls.append(f"infer {len(batch['input_ids'])}")
        width = batch["response_mask"].shape[1]
        log_probs = self.log_probs(batch["input_ids"][:, -width:]) * batch["response_mask"]
        return {"logprobs": log_probs.float(), "values": log_probs.float() / 2}

    def train(self, batches: Any, objective: Any, options: Any) -> dict[str, float]:
        return self.metrics([self.train_some(batches, objective, options)])

    def train_some(self, batches: Any, objective: Any, options: Any, *, last: bool = True) -> Any:
        assert self.state == "all", "it trains while it is off-loaded"
        self.calls.append(f"train {[len(batch['input_ids']) for batch in batches]}")
        found = []
        for batch in batches:
            signal = batch.get("advantages", batch.get("returns"))
            terms = (signal * batch["response_mask"]).double()
            for name in ("old_log_probs", "ref_log_probs", "values"):
                if name in batch:
                    terms = terms + batch[name].double() * batch["response_mask"]
            self.weight += 0.01 * math.fsum(terms.flatten().tolist())
            found.append({"loss": Metric(self.weight)})
        return [found]

    def metrics(self, parts: Any) -> dict[str, float]:
        losses = [one["loss"].value for part in parts for one in part[0]]
        return {"loss": math.fsum(losses) / len(losses)}


class Sampler(Policy):
    """Draws tokens from the seed of each prompt; long ones now and then."""

    weight_version = 0

    def generate(self, prompts: Any, params: Any, seeds: Any) -> list[Completion]:
        assert self.state == "all", "it generates while it is off-loaded"
        self.calls.append(f"generate {len(prompts)}")
        completions = []
        for index, seed in enumerate(seeds):
            for sample in range(params.n):
                draw = torch.Generator().manual_seed(seed * 7 + sample + int(self.weight * 1e6) % 9973)
                length = int(torch.randint(1, 6, (), generator=draw))
                tokens = torch.randint(1, 20, (length,), generator=draw)
                completions.append(
                    Completion(
                        prompt_index=index, sample_index=sample, tokens=tuple(tokens.tolist()),
                        logprobs=self.log_probs(tokens).float(), finish_reason="stop",
                        weight_version=self.weight_version,
                    )
                )  # fmt: skip
        return completions

    def update_weights(self, actor: Policy, version: int) -> None:
        self.weight, self.weight_version = actor.weight, version


class Judge:
    """Rewards by the text alone."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def score_batch(self, texts: Any, truths: Any, extras: Any = None, *, note: bool = True) -> Any:
        from plugrl.rewards.base import RewardResult

        return [RewardResult(sum(map(ord, text)) % 7 / 7, {"acc": float(len(text) > 2)}) for text in texts]

    def note(self, texts: Any, results: Any) -> None:
        assert len(texts) == len(results)
        self.noted.append(len(texts))


def recorder(rows: list[dict[str, float]]) -> Any:
    """A tracker that keeps the metrics of each step."""
    return SimpleNamespace(
        log=lambda metrics, step: rows.append(dict(metrics)), log_samples=lambda rows, step: None, run_id=None
    )


def settings(**sections: Any) -> RunConfig:
    values: dict[str, Any] = {
        "data": {"train_batch_size": 8, "max_response_length": 6, "max_prompt_length": 8},
        "actor": {"ppo_mini_batch_size": 4},
        "critic": {"ppo_mini_batch_size": 4},
        "rollout": {"n": 3},
        "reward": {"name": "exact_match"},
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {"total_training_steps": 3, "val_before_train": False, "test_freq": -1, "save_freq": -1},
    }
    for name, keys in sections.items():
        values.setdefault(name, {}).update(keys)
    return RunConfig.model_validate(values)


def train(
    config: RunConfig, devices: dict[str, tuple[int, ...]], follower: Any = None
) -> tuple[list[dict[str, float]], RlRun]:
    """Train on components that only compute; return the metrics of each step that are no times, and the run."""
    rows: list[dict[str, float]] = []
    parts: dict[str, Any] = {name: (Sampler if name == "rollout" else Policy)(name, d) for name, d in devices.items()}
    tracker = recorder(rows)
    store = SimpleNamespace(check=lambda: None, finish=lambda: None, root=NO_RUN / "checkpoints")
    run = RlRun(
        config, Components(**parts), Prompts(), Tokenizer(), Judge(), tracker, store, rl_plan(config, 64, 1),  # type: ignore[arg-type]
        follower,
    )  # fmt: skip
    (train_ppo if config.uses_critic else train_grpo)(run)
    kept = [{k: v for k, v in row.items() if not k.startswith(("timing", "perf/"))} for row in rows]
    return kept, run


MODES: dict[str, dict[str, tuple[int, ...]]] = {
    "collocated": {"rollout": (0,), "ref": (0,), "critic": (0,), "actor": (0,)},
    "disaggregated": {"rollout": (0,), "ref": (1,), "critic": (2,), "actor": (3,)},
    "hybrid": {"rollout": (0,), "ref": (1,), "critic": (1,), "actor": (0, 1)},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "recomputed": {},
    "streamed": {"actor": {"use_rollout_log_probs": True, "use_kl_loss": True}},
    "whole": {"actor": {"ppo_mini_batch_size": 8}},
    "kl in reward": {"algorithm": {"use_kl_in_reward": True}},
    "filtered": {"algorithm": {"filter_groups": {"enable": True}}, "actor": {"use_rollout_log_probs": True}},
    "remax": {"algorithm": {"adv_estimator": "remax"}, "actor": {"use_rollout_log_probs": True}},
    "critic": {"algorithm": {"adv_estimator": "gae"}, "trainer": {"critic_warmup": 1}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_placement_and_portions_change_no_number(name: str) -> None:
    expected: Any = None
    for mode, placed in MODES.items():
        for flow in ({}, {"chunk": 2}, {"chunk": 1, "max_ahead": 1}, {"chunk": 4}):
            config = settings(**{**SETTINGS[name], "flow": flow})
            needed = ["rollout", "actor"] + ["ref"] * config.uses_reference + ["critic"] * config.uses_critic
            found, run = train(config, {key: placed[key] for key in placed if key in needed})
            assert run.reward.noted == [24, 24, 24], "the warning of unreadable answers counts steps, not portions"  # type: ignore[attr-defined]
            expected = expected or found
            assert len(found) == 3 and found == expected, (mode, flow)


def test_another_flow_between_two_steps_changes_no_number_and_one_that_does_not_fit_changes_nothing() -> None:
    config = settings(**SETTINGS["streamed"])
    placed: dict[str, tuple[int, ...]] = {"rollout": (0,), "ref": (1,), "actor": (2,)}
    expected, _ = train(config, placed)
    flow = FlowConfig.model_validate({"phases": [{"chunk": 2, "stages": [["rollout"], ["ref"], ["actor"]]}]})
    portions = []

    class Follower:
        def observe(self, run: RlRun, step: Any, record: FlowRecord) -> None:
            portions.append(len(record.spans))

        def between_steps(self, run: RlRun, number: int) -> None:
            if number == 2:
                with pytest.raises(ConfigError, match="flow.phases"):
                    run.flow_changed(FlowConfig.model_validate({"phases": [{"stages": [["rollout"]]}]}))
                assert run.config == config
                run.flow_changed(flow)

    found, _ = train(config, placed, follower=Follower())
    assert found == expected
    assert portions[0] < portions[1] == portions[2], "the new flow has more portions"


@pytest.mark.parametrize("how", ["too little memory", "swapped"])
def test_components_that_share_a_device_make_room_for_each_other(how: str) -> None:
    """On a device that holds one of them, or by order, each is there when it works; the numbers stay the same."""
    placed = {"rollout": (0,), "actor": (0,)}
    expected, _ = train(settings(), placed)
    tight = {"cluster": {"device_memory_mib": 100}} if how == "too little memory" else {}
    flow = {"chunk": 4} | ({} if tight else {"swapped": ["rollout", "actor"]})
    found, run = train(settings(**tight, flow=flow), placed)
    assert found == expected
    actor, rollout = (run.residency.residents[name].moves for name in ("actor", "rollout"))
    if tight:
        assert actor == ["weights", *["all", "weights"] * 3], "the trainer keeps its weights while it hands them out"
        assert rollout == ["away", "all", *["away", "all"] * 3], "one off-load and one on-load for each switch"
    else:
        assert rollout == ["away", "all"] * 3, "it leaves after its phase and comes for the new weights"


def test_updates_begin_before_the_last_sample_only_where_that_changes_nothing() -> None:
    """A mini-batch of 4 prompts is trained on while later ones are drawn, or all wait; the table says why."""
    placed = MODES["disaggregated"]
    for name, streams in (("streamed", True), ("recomputed", False), ("filtered", False), ("whole", False)):
        config = settings(**{**SETTINGS[name], "flow": {"chunk": 2}})
        update = next(stage for stage in check_flow(config, placed).work if stage.name == "update_actor")
        assert update.size == (4 if streams else 8), name
        assert bool(update.why) is not streams, name
        _, run = train(config, {key: placed[key] for key in ("rollout", "ref", "actor")})
        calls = [call for call in run.actor.calls if call.startswith("train")]  # type: ignore[attr-defined]
        assert len(calls) == (6 if streams else 3), (name, calls)


def test_portions_too_small_for_the_ranks_of_a_component_are_refused() -> None:
    config = settings(rollout={"n": 1}, algorithm={"adv_estimator": "reinforce_plus_plus"}, flow={"chunk": 1})
    with pytest.raises(ConfigError, match=r"flow.chunk: 1 prompts of 1 responses are fewer than the 2 ranks of actor"):
        check_flow(config, {"rollout": (0,), "actor": (1, 2)})


def test_the_stages_of_a_loop_are_named_without_starting_anything() -> None:
    config = settings(**SETTINGS["critic"])
    from plugrl.runners.needs import Needs

    assert stages_of(config)(Needs(config)).names == [
        "gen", "reward", "old_log_prob", "values", "adv", "update_critic", "update_actor",
    ]  # fmt: skip


def test_metrics_tell_how_much_overlapped(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    config = settings(flow={"chunk": 2})
    parts: dict[str, Any] = {"rollout": Sampler("rollout", (0,)), "actor": Policy("actor", (1,))}
    tracker = recorder(rows)
    store = SimpleNamespace(check=lambda: None, finish=lambda: None, root=NO_RUN / "checkpoints")
    run = RlRun(
        config, Components(**parts), Prompts(), Tokenizer(), Judge(), tracker, store, rl_plan(config, 64, 1)  # type: ignore[arg-type]
    )
    train_grpo(run)
    for row in rows:
        assert 0 <= row["perf/bubble_ratio"] < 1 and 0 <= row["perf/overlap_ratio"] <= 1
        assert row["timing_s/gen"] > 0 and row["timing_s/update_actor"] > 0


def asynchronous(staleness: int, **flow: Any) -> RunConfig:
    return settings(
        actor={"use_rollout_log_probs": True},
        trainer={"total_training_steps": 6},
        flow={"asynchronous": {"enable": True, "max_staleness": staleness}, **flow},
    )


@pytest.mark.parametrize("staleness", [1, 2])
def test_samples_are_drawn_ahead_but_never_by_weights_that_are_too_old(
    staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow actor sampling runs as far ahead as it may, and no further; every sample is used once."""
    slow_train, saved = Policy.train_some, []

    def train_some(self: Policy, *args: Any, **keys: Any) -> Any:
        time.sleep(0.05)
        return slow_train(self, *args, **keys)

    monkeypatch.setattr(Policy, "train_some", train_some)
    monkeypatch.setattr(RlRun, "finish", lambda run, step, rows: saved.append((step, rows, run._position)))
    _, run = train(asynchronous(staleness, chunk=4), {"rollout": (0,), "actor": (1,)})
    assert [step.number for step, _, _ in saved] == [1, 2, 3, 4, 5, 6]
    for step, experience, position in saved:
        ages = [step.number - 1 - version for version in experience.weight_versions]
        assert len(ages) == 24 and min(ages) >= 0
        assert step.metrics["rollout/staleness/max"] == max(ages) <= staleness
        assert position[0] == {"position": step.number}, "a resumed run would skip or repeat prompts"
    assert max(step.metrics["rollout/staleness/max"] for step, _, _ in saved) == staleness
    generated = sum(int(call.split()[1]) for call in run.rollout.calls if call.startswith("generate"))  # type: ignore[attr-defined]
    assert generated == 6 * 8, "samples were drawn that nobody uses, or twice"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flow-")]


def test_weights_change_between_portions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, update = Sampler.generate, Sampler.update_weights
    inside: list[str] = []

    def slow(self: Sampler, *args: Any) -> Any:
        inside.append("generate")
        before, found = self.weight_version, generate(self, *args)
        time.sleep(0.01)
        assert self.weight_version == before, "weights changed while samples were drawn"
        inside.remove("generate")
        return found

    def checked(self: Sampler, *args: Any) -> None:
        assert not inside, "weights came into the middle of a portion"
        update(self, *args)

    monkeypatch.setattr(Sampler, "generate", slow)
    monkeypatch.setattr(Sampler, "update_weights", checked)
    rows, _ = train(asynchronous(2, chunk=2), {"rollout": (0,), "actor": (1,)})
    assert len(rows) == 6


def test_an_error_while_sampling_ahead_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Sampler.generate

    def wrong(self: Sampler, prompts: Any, params: Any, seeds: Any) -> Any:
        if seeds[0] >= 300:
            raise ValueError("no more")
        return generate(self, prompts, params, seeds)

    monkeypatch.setattr(Sampler, "generate", wrong)
    with pytest.raises(ValueError, match="no more"):
        train(asynchronous(1), {"rollout": (0,), "actor": (1,)})


def test_what_assumes_the_newest_weights_is_refused_with_its_key() -> None:
    from plugrl.config.checks import cross_problems

    wrong = settings(algorithm={"adv_estimator": "gae"}, flow={"asynchronous": {"enable": True}})
    text = "\n".join(cross_problems(wrong))
    assert "flow.asynchronous.enable: samples come from older weights" in text
    assert "actor.use_rollout_log_probs=true" in text and "without a critic" in text
    assert "flow.asynchronous" not in "\n".join(cross_problems(asynchronous(1)))
    with pytest.raises(ConfigError, match="rollout samples while actor works, but both are placed on device 0"):
        check_flow(asynchronous(1), {"rollout": (0,), "actor": (0, 1)})
