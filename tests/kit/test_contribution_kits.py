"""The kits for engines, models, rollout backends and environments: ours pass, and what is wrong is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from plugrl.envs import EnvParams
from plugrl.errors import EnvContractError
from plugrl.testing.corridor import Corridor
from plugrl.testing.fork_server import shared_server
from plugrl.testing.kit import env_scenes
from plugrl.testing.kit.checks import CheckFailed, checks_of
from plugrl.testing.kit.conformance import run_conformance, targets_of
from plugrl.testing.kit.settings import Settings

OURS = {"engine_fsdp": "engine", "models_hf": "model", "rollout_hf": "rollout", "envs_gymnasium": "env"}
SLOW = {"envs_metaworld": "env", "envs_tabletop": "env"}


@pytest.mark.parametrize(
    ("plugin", "kit"), [*OURS.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in SLOW.items())]
)
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
        self.episodes = 0

    def begin_scenes(self, indices, seeds):
        self.episodes += 1
        if self.flaw == "moves others at a reset" and len(indices) < self.num_envs:
            self.position += 0.125
        super().begin_scenes(indices, [0 for _ in seeds] if self.flaw == "ignores the seed" else seeds)
        if self.flaw == "seeds differ between scenes":
            self.position[indices] += indices * np.float32(0.01)
        if self.flaw == "remembers":
            self.position[indices] += np.float32(0.01) * (self.episodes > 8)

    def advance_scenes(self, actions, active):
        if self.flaw == "scenes touch":
            actions = actions + np.float32(0.125) * (actions[0] == actions[1])
        return super().advance_scenes(actions, active)

    def observe_scenes(self, indices):
        fields = super().observe_scenes(indices)
        if self.flaw == "flat states":
            fields = {**fields, "states": fields["states"][:, 0]}
        if self.flaw == "infinite states":
            fields = {**fields, "states": np.full((len(indices), 1), np.inf, dtype=np.float32)}
        return fields

    def expert_scenes(self):
        return np.zeros((self.num_envs, 2)) if self.flaw == "expert of another width" else super().expert_scenes()

    def reset(self, seed=None, indices=None):
        obs, info = super().reset(seed, indices)
        return obs, {} if self.flaw == "hides its seeds" else info

    def chunk_step(self, actions):
        if self.flaw == "takes any action":
            actions = actions[: self.num_envs, :, :1]
        if self.flaw == "no chunks":
            actions = actions[:, :1].repeat(1, actions.shape[1], 1)
            actions[:, 1:] = 0
        result = super().chunk_step(actions)
        ended = result.dones.any(dim=1).nonzero().flatten().tolist()
        if self.flaw == "restarts twice" and ended:
            return replace(result, obs=super().reset(indices=ended)[0])
        if self.flaw == "writes into its buffers":
            self.buffer = getattr(self, "buffer", result.obs["states"])
            return replace(result, obs={**result.obs, "states": self.buffer.copy_(result.obs["states"])})
        if self.flaw == "forgets success":
            return replace(result, success_once=torch.zeros_like(result.success_once))
        if self.flaw == "records another length":
            return replace(result, episodes=tuple(replace(item, length=item.length + 1) for item in result.episodes))
        if self.flaw == "records are late":
            self.late, episodes = result.episodes, getattr(self, "late", ())
            return replace(result, episodes=episodes)
        return replace(result, **SLIPS.get(self.flaw, lambda result: {})(result))

    def close(self):
        super().close()
        if self.flaw == "closes once" and self.closed == 2:
            raise EnvContractError("it is closed")


SLIPS = {
    "keeps no last observation": lambda result: {"final_obs": None},
    "last observation of the next episode": lambda result: {"final_obs": result.final_obs and result.obs},
    "integer rewards": lambda result: {"rewards": result.rewards.long()},
    "rewards what was not executed": lambda result: {"rewards": result.rewards + 1.0},
    "one flag for both ends": lambda result: {"truncations": result.dones, "terminations": result.dones},
    "flags in the last column": lambda result: {
        "terminations": torch.nn.functional.pad(result.terminations.any(1, keepdim=True),
                                                (result.dones.shape[1] - 1, 0)),
    },
    "executes all": lambda result: {"executed": torch.ones_like(result.executed)},
}  # fmt: skip


def run_env_kit(monkeypatch: pytest.MonkeyPatch, flaw: str, only: str) -> dict[str, str]:
    """Run a check of the kit, or each, on one environment in this process; returns what failed."""
    entry = SimpleNamespace(key="corridor", meta={"example": "a:b"})
    kit = SimpleNamespace(entries=lambda kind: [entry])
    monkeypatch.setattr(env_scenes, "import_target", lambda name: lambda count: (Flawed(count, flaw), ACTIONS))
    failed = {}
    for item in checks_of("env"):
        if only not in ("", item.id):
            continue
        try:
            item.body(kit)
        except (CheckFailed, EnvContractError) as error:
            failed[item.id] = str(error)
    return failed


ACTIONS = torch.tensor([[0.9], [0.5], [0.1]])
FLAWS = {
    "": ("", ""),
    "ignores the seed": ("env.seed", "other seeds give the same episode"),
    "seeds differ between scenes": ("env.seed", "the same seed gives another first observation"),
    "remembers": ("env.seed", "the same seed gives another first observation"),
    "hides its seeds": ("env.reset", "info['seeds'] of a reset"),
    "flat states": ("env.reset", "obs.states must be float32 [N, S], not torch.float32 [3]"),
    "infinite states": ("env.reset", "obs.states holds a number that is not finite"),
    "moves others at a reset": ("env.partial_reset", "after a reset of scene 0 the others go on otherwise"),
    "scenes touch": ("env.independent", "another action in scene 0 changes the others"),
    "no chunks": ("env.chunks", "rewards of a chunk differ from those of its steps"),
    "takes any action": ("env.actions", "an action too wide is accepted"),
    "writes into its buffers": ("env.kept", "a later call writes into tensors returned before"),
    "restarts twice": ("env.ends", "each scene that ended restarts exactly once"),
    "keeps no last observation": ("env.ends", "final_obs must be there when an episode ended"),
    "last observation of the next episode": ("env.ends", "is the first observation of its next episode"),
    "flags in the last column": ("env.ends", "an episode ends with an action that was not executed"),
    "executes all": ("env.ends", "an action after the end of an episode is executed within the same chunk"),
    "integer rewards": ("env.chunks", "rewards must be torch.float32 [3, 1], not torch.int64 [3, 1]"),
    "rewards what was not executed": ("env.ends", "an action that was not executed has a reward"),
    "one flag for both ends": ("env.ends", "an action both terminates and truncates its episode"),
    "forgets success": ("env.episodes", "a scene is solved at the end but not once"),
    "records another length": ("env.episodes", "length, seed and success_once of a record is wrong"),
    "records are late": ("env.episodes", "episodes lists the scenes [], those that ended are [0]"),
    "expert of another width": ("env.optional", "expert_actions is wrong"),
    "closes once": ("env.close", "it is closed"),
}


@pytest.mark.parametrize(("flaw", "check", "words"), [(flaw, *found) for flaw, found in FLAWS.items()])
def test_the_kit_for_environments_names_the_rule_that_is_broken(monkeypatch: pytest.MonkeyPatch, flaw: str, check: str,
                                                                 words: str) -> None:  # fmt: skip
    failed = run_env_kit(monkeypatch, flaw, check)
    assert not failed if not flaw else words in failed.get(check, ""), failed
