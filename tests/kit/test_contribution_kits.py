"""The kits for engines, models, rollout backends and environments: ours pass, and what is wrong is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from plugrl.envs import EnvParams
from plugrl.testing.corridor import Corridor
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
class Flawed(Corridor):
    """The corridor, which ``flaw`` makes wrong in one way."""

    def __init__(self, count: int, flaw: str = "") -> None:
        super().__init__(EnvParams(num_envs=count))
        self.flaw = flaw

    def begin_scenes(self, indices, seeds):
        if self.flaw == "resets all":
            self.position[:] = 0
        if self.flaw == "ignores the seed":
            seeds = [int(torch.randint(2**31, ())) for _ in seeds]
        super().begin_scenes(indices, seeds)
        if self.flaw == "resets all":
            self._obs = dict(self.observe_scenes(np.arange(self.num_envs)))
            self._obs["states"] = torch.from_numpy(self._obs["states"].copy())

    def chunk_step(self, actions):
        result = super().chunk_step(actions)
        if self.flaw == "keeps no last observation":
            result = replace(result, final_obs=None)
        if self.flaw == "integer rewards":
            result = replace(result, rewards=result.rewards.long())
        return result


def run_env_kit(monkeypatch: pytest.MonkeyPatch, flaw: str) -> dict[str, str]:
    """Run every check of the kit on one environment in this process; returns what failed."""
    entry = SimpleNamespace(key="corridor", meta={"example": "a:b"})
    kit = SimpleNamespace(entries=lambda kind: [entry])
    monkeypatch.setattr(env_scenes, "import_target", lambda name: lambda count: (Flawed(count, flaw), ACTIONS))
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
