"""The kit for policies that act: ours pass, and what is wrong is found by the check that is there for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from plugrl.testing.fork_server import shared_server
from plugrl.testing.kit import policy_acting
from plugrl.testing.kit.checks import CheckFailed, checks_of
from plugrl.testing.kit.conformance import run_conformance, targets_of
from plugrl.testing.kit.settings import Settings
from plugrl_models_policy.config import MlpPolicyConfig
from plugrl_models_policy.example import mlp_policy, states
from plugrl_models_policy.policy import MlpPolicy

CHECKS = 10


@pytest.mark.parametrize("plugin", ["models_policy", pytest.param("models_openvla", marks=pytest.mark.slow)])
def test_our_own_policies_conform(plugin: str) -> None:
    (target,) = targets_of(plugin)
    assert target.levels == ("L0", "model", "policy")
    report = run_conformance(target, ("policy",), settings=Settings(), env={"VERL_PLATFORM": "cpu"},
                             server=shared_server())  # fmt: skip
    assert report.passed and report.executed == len(report.results) == CHECKS, report.results


class Flawed(MlpPolicy):
    """The policy on states, which ``flaw`` makes wrong in one way."""

    flaw = ""

    def read(self, obs):
        return {"states": obs["states"].float()} if self.flaw == "KeyError" else super().read(obs)

    def features(self, inputs):
        found = super().features(inputs)
        if self.flaw == "batch statistics":
            return found - found.mean(0)
        return torch.zeros_like(found) if self.flaw == "blind" else found

    def predict_action_batch(self, env_obs, mode="train", compute_values=True, *, generator=None, **options):
        if self.flaw == "draws nothing":
            mode = "eval"
        if self.flaw == "ignores the generator":
            generator = torch.Generator().manual_seed(torch.seed() % 2**32)
        if self.flaw == "noise in eval" and mode == "eval":
            mode, options = "train", {"temperature": 0.01}
        actions, result = super().predict_action_batch(env_obs, mode, compute_values, generator=generator, **options)
        choice = result["forward_inputs"]["choice"]
        changed = {
            "unbounded": lambda: (choice.float(), result),
            "flat actions": lambda: (actions[:, 0], result),
            "double": lambda: (actions.double(), result),
            "other probabilities": lambda: (actions, {**result, "prev_logprobs": result["prev_logprobs"] * 1.01}),
            "other values": lambda: (actions, {**result, "prev_values": result["prev_values"] + 1}),
            "values of actions": lambda: (actions, {**result, "prev_values": result["prev_logprobs"]}),
            "remembers a scale": lambda: (actions, {**result, "forward_inputs": {**result["forward_inputs"], "k": 3}}),
            "forgets": lambda: (actions, {"prev_logprobs": result["prev_logprobs"]}),
        }
        return changed.get(self.flaw, lambda: (actions, result))()

    def default_forward(self, forward_inputs, **options):
        with torch.set_grad_enabled(self.flaw != "no gradient" and torch.is_grad_enabled()):
            return super().default_forward(forward_inputs, **options)

    def sft_forward(self, forward_inputs, **options):
        if self.flaw == "counts masked actions":
            forward_inputs = {**forward_inputs, "action_mask": torch.ones_like(forward_inputs["action_mask"])}
        found = super().sft_forward(forward_inputs, **options)
        if self.flaw == "learns the opposite":
            return {**found, "losses": 2.0 - (2.0 - found["losses"]).detach() + (found["losses"].detach() * 2
                                                                                - found["losses"] * 2)}  # fmt: skip
        return {**found, "losses": found["losses"].mean()} if self.flaw == "one loss" else found


FLAWS = {
    "": ("", ""),
    "flat actions": ("policy.acts", "dimensions and rows of actions"),
    "double": ("policy.acts", "type, device, dimensions"),
    "values of actions": ("policy.acts", "the shape of prev_values"),
    "remembers a scale": ("policy.acts", "forward_inputs['k'] is no tensor with a row for each scene"),
    "forgets": ("policy.acts", "the result lacks forward_inputs, prev_values"),
    "unbounded": ("policy.range", "actions grow with the temperature"),
    "draws nothing": ("policy.seeds", "every generator draws the same"),
    "ignores the generator": ("policy.seeds", "the same generator draws other actions"),
    "noise in eval": ("policy.seeds", "mode eval depends on the generator"),
    "batch statistics": ("policy.rows", "are answered otherwise than in the batch"),
    "other probabilities": ("policy.ratio", "the first ratio at temperature 1.0"),
    "no gradient": ("policy.gradients", "does not require grad"),
    "other values": ("policy.values", "predict_values gives other values than acting"),
    "learns the opposite": ("policy.imitates", "the loss after 30 steps"),
    "counts masked actions": ("policy.imitates", "actions that action_mask leaves out change the loss"),
    "one loss": ("policy.imitates", "the shape of the losses of sft_forward"),
    "blind": ("policy.looks", "the answer does not depend on states"),
    "KeyError": ("policy.missing", "an observation without states raises KeyError"),
}


@pytest.mark.parametrize(("flaw", "check", "words"), [(flaw, *found) for flaw, found in FLAWS.items()])
def test_the_kit_for_policies_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch, flaw: str, check: str,
                                                   words: str) -> None:  # fmt: skip
    torch.manual_seed(0)
    policy = Flawed(MlpPolicyConfig(**mlp_policy())).eval()
    policy.flaw = flaw
    shown = policy_acting.Acting("flawed", policy, states(policy_acting.ROWS))
    monkeypatch.setattr(policy_acting, "policies", lambda kit: [shown])
    failed = {}
    for item in checks_of("policy"):
        if check not in ("", item.id):
            continue
        try:
            item.body(SimpleNamespace())
        except (CheckFailed, RuntimeError) as error:
            failed[item.id] = str(error)
    assert not failed if not flaw else words in failed.get(check, ""), failed
