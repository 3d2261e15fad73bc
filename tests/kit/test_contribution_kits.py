"""The kits for engines, models, rollout backends and environments: ours pass, and what is wrong is found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from plugrl.envs.base import StepResult, VecEnv
from plugrl.testing.fork_server import shared_server
from plugrl.testing.kit import env_scenes
from plugrl.testing.kit.checks import CheckFailed, checks_of
from plugrl.testing.kit.conformance import run_conformance, targets_of
from plugrl.testing.kit.settings import Settings

OURS = {"engine_fsdp": "engine", "models_hf": "model", "rollout_hf": "rollout"}


@pytest.mark.parametrize(("plugin", "kit"), OURS.items())
def test_our_own_contributions_conform(plugin: str, kit: str) -> None:
    (target,) = targets_of(plugin)
    report = run_conformance(target, (kit,), settings=Settings(), env={"VERL_PLATFORM": "cpu"},
                             server=shared_server())  # fmt: skip
    assert report.passed and report.executed == len(report.results) >= 5, report.results


WRONG = {
    "engine_forgets_to_load": ("engine_fsdp", "engine.resume_exact", "after loading a checkpoint"),
    "engine_leaves_out_a_tensor": ("engine_fsdp", "engine.export", "the published names"),
    "model_counts_padding": ("models_hf", "model.padding", "four columns of padding"),
    "rollout_reports_other_logprobs": ("rollout_hf", "rollout.logprobs", "within 1e-3"),
    "rollout_keeps_its_version": ("rollout_hf", "rollout.weights", "the version"),
}


QUICK = {"engine_forgets_to_load", "rollout_reports_other_logprobs"}


@pytest.mark.parametrize(
    "wrong", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in WRONG]
)
def test_what_is_wrong_is_found_by_its_check(wrong: str) -> None:
    plugin, check, words = WRONG[wrong]
    (target,) = targets_of(plugin)
    env = {"VERL_PLATFORM": "cpu", "WRONG": wrong, "PYTHONPATH": str(Path(__file__).parent)}
    settings = Settings(modules=("wrong_contributions",))
    report = run_conformance(target, (OURS[plugin],), only=(check,), settings=settings, env=env,
                             server=shared_server())  # fmt: skip
    (result,) = report.results
    assert result.status == "failed" and words in result.detail, result


# --------------------------------------------------------------------- environments
class Corridor(VecEnv):
    """Scenes in which the position grows by the action until it is 3 or the time is up; ``flaw`` makes it wrong."""

    def __init__(self, count: int, flaw: str = "") -> None:
        self.flaw = flaw
        self.position = torch.zeros(count)
        self.steps = torch.zeros(count, dtype=torch.int64)

    @property
    def num_envs(self) -> int:
        return len(self.position)

    def reset(self, seed=None, indices=None):
        chosen = list(range(self.num_envs)) if indices is None or self.flaw == "resets all" else list(indices)
        source = torch.Generator().manual_seed(seed or 0)
        if self.flaw == "ignores the seed":
            source.seed()
        self.position[chosen] = torch.rand(len(chosen), generator=source)
        self.steps[chosen] = 0
        return self.observation(), {}

    def observation(self):
        return {"states": self.position[:, None].clone()}

    def step(self, actions) -> StepResult:
        self.position += actions[:, 0]
        self.steps += 1
        done, late = self.position >= 3, self.steps >= 12
        final = self.observation() if bool((done | late).any()) else None
        ended = (done | late).nonzero().flatten().tolist()
        if ended:
            self.reset(seed=1, indices=ended)
        if self.flaw == "keeps no last observation":
            final = None
        rewards = done.float() if self.flaw != "integer rewards" else done.long()
        return StepResult(obs=self.observation(), rewards=rewards, terminations=done, truncations=late & ~done,
                          success_once=done, success_at_end=done, final_obs=final)  # fmt: skip

    def close(self) -> None: ...


def run_env_kit(monkeypatch: pytest.MonkeyPatch, flaw: str) -> dict[str, str]:
    """Run every check of the kit on one environment in this process; returns what failed."""
    entry = SimpleNamespace(key="corridor", meta={"example": "a:b"})
    kit = SimpleNamespace(entries=lambda kind: [entry])
    monkeypatch.setattr(env_scenes, "import_target", lambda name: lambda count: (Corridor(count, flaw), ACTIONS))
    failed = {}
    for item in checks_of("env"):
        try:
            item.body(kit)
        except CheckFailed as error:
            failed[item.id] = str(error)
    return failed


ACTIONS = torch.tensor([[1.0], [0.5], [0.1]])
FLAWS = {
    "": "",
    "ignores the seed": "env.reset",
    "resets all": "env.partial_reset",
    "keeps no last observation": "env.ends",
    "integer rewards": "env.step",
}


@pytest.mark.parametrize(("flaw", "check"), FLAWS.items())
def test_the_kit_for_environments_finds_each_flaw(monkeypatch: pytest.MonkeyPatch, flaw: str, check: str) -> None:
    failed = run_env_kit(monkeypatch, flaw)
    assert not failed if not flaw else check in failed, failed
