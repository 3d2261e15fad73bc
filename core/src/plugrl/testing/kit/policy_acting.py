"""The kit for policies that act: what they see, draw, recompute and imitate, on the tiny example of a model type.

A manifest names two functions, ``ModelEntry(example="acme.example:tiny", observations="acme.example:seen")``: the
configuration of a tiny policy, and ``(count)`` -> observations of so many scenes, with the fields that the policy uses
and nothing else. Instructions in them, if any, are not all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from plugrl.envs.contract import IMAGES
from plugrl.errors import PlugRLError, UnsupportedCapability
from plugrl.models.base import BasePolicy
from plugrl.registry import import_target
from plugrl.testing.kit.checks import CheckSkipped, check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import Context
from plugrl.workers.embodied.keywords import accepted

ROWS = 4
CLOSE = 1e-4
"""Largest difference of log-probabilities and values that rounding explains."""

RATIO = 1e-3
"""Largest difference from 1 of the ratio of probabilities before the first update."""

SOURCE = 7
IMITATION_STEPS = 30
GREY = 128
_TEXTS = "task_descriptions"


@dataclass(frozen=True)
class Acting:
    """A policy of the plugin, and what it is shown: observations of :data:`ROWS` scenes."""

    name: str
    policy: BasePolicy
    obs: Mapping[str, Any]

    def has(self, capability: str) -> bool:
        """Whether the policy declares a capability."""
        return capability in self.policy.capabilities()

    def act(self, obs: Mapping[str, Any] | None = None, mode: str = "train", seed: int = SOURCE, **sampling: Any
            ) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
        """Return ``(actions, result)`` for observations, drawn from a generator with ``seed``."""
        generator = torch.Generator().manual_seed(seed)
        given = accepted(self.policy.predict_action_batch, {**sampling, "generator": generator})
        if "generator" not in given:
            torch.manual_seed(seed)
        actions, result = self.policy.predict_action_batch(
            self.obs if obs is None else obs, mode=mode, compute_values=self.has("values"), **given
        )
        return actions, result

    def recompute(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Return what the policy computes of inputs that it cached when acting."""
        given = accepted(self.policy.default_forward, options)
        return self.policy(forward_inputs=inputs, **given)

    def answer(self, obs: Mapping[str, Any] | None = None) -> torch.Tensor:
        """Return what the policy makes of observations, [N, ...]: likeliest actions, their probabilities, values."""
        actions, result = self.act(obs, "eval")
        parts = [actions, *(result[key] for key in ("prev_logprobs", "prev_values") if result.get(key) is not None)]
        return torch.cat([part.detach().float().cpu().flatten(1) for part in parts], dim=1)


def policies(kit: Context) -> Iterator[Acting]:
    """Yield the policies of the plugin that act, each built once. Raises CheckSkipped when none names observations."""
    from plugrl.models import get_model

    kit.platform  # noqa: B018  (builders ask for it)
    entries = [entry for entry in kit.entries("model") if entry.meta.get("category") == "embodied"]
    shown = [entry for entry in entries if entry.meta.get("example") and entry.meta.get("observations")]
    if not shown:
        raise CheckSkipped(
            "no model type of the plugin that acts names what it is shown: ModelEntry(example=..., observations=...)"
        )
    for entry in shown:
        name = str(entry.key)
        if name not in kit.cache:
            policy = get_model(import_target(entry.meta["example"])(), "fp32").eval()
            kit.cache[name] = Acting(name, policy, import_target(entry.meta["observations"])(ROWS))
        found: Acting = kit.cache[name]
        yield found


def rows(fields: Mapping[str, Any], chosen: list[int]) -> dict[str, Any]:
    """Return some rows of observations or cached inputs; what is neither tensor nor list stays."""
    return {name: value[chosen] if isinstance(value, torch.Tensor) else [value[index] for index in chosen]
            if isinstance(value, list) else value for name, value in fields.items()}  # fmt: skip


def _far(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first.detach().float() - second.detach().float()).abs().max())


# --------------------------------------------------------------------- acting
@check("policy.acts", gate=True)
def acts(kit: Context) -> str:
    """Actions are float32 [N, C, D] on the host, with log-probabilities, values and inputs of a row for each scene."""
    found = []
    for item in policies(kit):
        name = item.name
        expect(item.has("actions"), f"{name}: its category is embodied, but it has no capability actions")
        actions, result = item.act()
        told = (actions.dtype, actions.device.type, actions.ndim, len(actions))
        expect_equal(told, (torch.float32, "cpu", 3, ROWS), f"{name}: type, device, dimensions and rows of actions")
        expect(torch.isfinite(actions).all(), f"{name}: an action is not finite")
        shape = tuple(actions.shape)
        missing = {"prev_logprobs", "prev_values", "forward_inputs"} - set(result)
        expect(not missing, f"{name}: the result lacks {', '.join(sorted(missing))}")
        if item.has("logprobs"):
            given = result["prev_logprobs"]
            flat = (ROWS, shape[1] * shape[2])
            expect(tuple(given.shape) in (shape, flat), f"{name}: the shape of prev_logprobs", got=tuple(given.shape),
                   expected=f"{shape} or {flat}")  # fmt: skip
            expect(torch.isfinite(given).all(), f"{name}: a log-probability of what was drawn is not finite")
        if item.has("values"):
            _check_values(name, result["prev_values"], shape)
        for key, value in result["forward_inputs"].items():
            good = isinstance(value, torch.Tensor) and len(value) == ROWS
            expect(good, f"{name}: forward_inputs[{key!r}] is no tensor with a row for each scene")
        found.append(f"{name}: {shape[1]} x {shape[2]}")
    return ", ".join(found)


def _check_values(name: str, values: Any, shape: tuple[int, ...]) -> None:
    allowed = ((ROWS, 1), (ROWS, shape[1]))
    expect(isinstance(values, torch.Tensor) and tuple(values.shape) in allowed, f"{name}: the shape of prev_values",
           got=getattr(values, "shape", values), expected=" or ".join(map(str, dict.fromkeys(allowed))))  # fmt: skip
    expect(values.dtype == torch.float32 and torch.isfinite(values).all(), f"{name}: values are not finite float32")


@check("policy.range", fix="Actions are carried out as they are: clip them, or map them to the robot's units.")
def action_range(kit: Context) -> None:
    """However hot the draws are, actions stay within a range: they are what the environment carries out."""
    for item in policies(kit):
        if not item.has("logprobs"):
            continue
        largest = [float(item.act(temperature=heat)[0].abs().max()) for heat in (1e3, 1e6)]
        expect(largest[1] <= 10 * max(largest[0], 1e-6), f"{item.name}: actions grow with the temperature of the draw",
               got=largest[1], expected=f"about {largest[0]:.3g}, as at a lower one")  # fmt: skip


@check("policy.seeds", fix="Draw from the generator that predict_action_batch is given, and from nothing else.")
def seeds(kit: Context) -> None:
    """The same generator draws the same actions, another one others; mode eval is the same every time."""
    for item in policies(kit):
        expect(torch.equal(item.act(mode="eval", seed=1)[0], item.act(mode="eval", seed=2)[0]),
               f"{item.name}: mode eval depends on the generator")  # fmt: skip
        if not item.has("logprobs"):
            continue
        first = item.act(seed=1)[0]
        expect(torch.equal(first, item.act(seed=1)[0]), f"{item.name}: the same generator draws other actions")
        others = [item.act(seed=seed)[0] for seed in (2, 3, 4)]
        expect(not all(torch.equal(first, other) for other in others), f"{item.name}: every generator draws the same")


@check("policy.rows")
def independent_rows(kit: Context) -> None:
    """What the policy makes of a scene depends on that scene alone: not on its neighbours, nor on the batch's size."""
    for item in policies(kit):
        whole = item.answer()
        for chosen in ([2], [3, 2, 1, 0]):
            part = item.answer(rows(item.obs, chosen))
            far = _far(part, whole[chosen])
            expect(far < CLOSE, f"{item.name}: rows {chosen} alone are answered otherwise than in the batch",
                   got=far, expected=f"below {CLOSE:g}")  # fmt: skip
        if item.has("logprobs"):
            inputs = item.act()[1]["forward_inputs"]
            with torch.no_grad():
                every = item.recompute(inputs, compute_logprobs=True)["logprobs"]
                some = item.recompute(rows(inputs, [3, 1]), compute_logprobs=True)["logprobs"]
            expect(_far(some, every[[3, 1]]) < CLOSE, f"{item.name}: recomputed rows depend on the others of the batch")


# --------------------------------------------------------------------- recomputing
@check("policy.ratio", fix="Acting and default_forward must compute the distribution by the same function.")
def first_ratio(kit: Context) -> str:
    """Before the first update the recomputed log-probabilities are those of acting: every ratio is 1."""
    found = []
    for item in policies(kit):
        if not item.has("logprobs"):
            continue
        for heat in (1.0, 0.7):
            _, result = item.act(temperature=heat)
            options = {"compute_logprobs": True, "compute_entropy": item.has("entropy"), "temperature": heat}
            outputs = item.recompute(result["forward_inputs"], **options)
            shape = tuple(outputs["logprobs"].shape)
            expect(len(shape) == 3 and shape[0] == ROWS, f"{item.name}: recomputed log-probabilities are not [B, C, D]",
                   got=shape)  # fmt: skip
            before = result["prev_logprobs"].to(outputs["logprobs"].device).view(shape)
            far = float(((outputs["logprobs"].detach() - before).exp() - 1).abs().max())
            expect(far < RATIO, f"{item.name}: the first ratio at temperature {heat}",
                   got=f"1 within {far:.2g}", expected=f"1 within {RATIO:g}")  # fmt: skip
            if item.has("entropy"):
                entropy = outputs["entropy"]
                expect(tuple(entropy.shape) == shape and torch.isfinite(entropy).all(),
                       f"{item.name}: entropies are not finite [B, C, D]")  # fmt: skip
        found.append(f"{item.name}: {far:.1e} off")
    return ", ".join(found)


@check("policy.gradients")
def gradients(kit: Context) -> None:
    """Recomputed log-probabilities have gradients; only of a policy that declares none they are refused."""
    for item in policies(kit):
        inputs = item.act()[1]["forward_inputs"]
        if not item.has("logprobs"):
            expect_raises(UnsupportedCapability, partial(item.recompute, inputs, compute_logprobs=True),
                          f"{item.name}: log-probabilities of a policy that declares none")  # fmt: skip
            continue
        policy = item.policy
        policy.zero_grad()
        item.recompute(inputs, compute_logprobs=True)["logprobs"].sum().backward()
        moved = any(value.grad is not None and bool(value.grad.any()) for value in policy.parameters())
        policy.zero_grad()
        expect(moved, f"{item.name}: log-probabilities have no gradient in any parameter")


@check("policy.values")
def values(kit: Context) -> None:
    """Values are the same when acting, asked for alone, and recomputed; a policy without them says so."""
    for item in policies(kit):
        alone: Callable[[], torch.Tensor] = partial(item.policy.predict_values, item.obs)
        if not item.has("values"):
            expect_raises(UnsupportedCapability, alone, f"{item.name}: values of a policy that declares none")
            continue
        _, result = item.act()
        acting = result["prev_values"]
        with torch.no_grad():
            options = {"compute_values": True, "compute_logprobs": False}
            recomputed = item.recompute(result["forward_inputs"], **options)["values"]
        expect(_far(alone(), acting) < CLOSE, f"{item.name}: predict_values gives other values than acting")
        expect(_far(recomputed.view_as(acting), acting) < CLOSE, f"{item.name}: recomputed values differ from acting")


# --------------------------------------------------------------------- imitating
@check("policy.imitates", fix="sft_inputs makes the inputs of sft_forward from observations and actions [B, C, D].")
def imitates(kit: Context) -> str:
    """Supervised training on a few of its own actions lowers the loss, and masked actions do not count."""
    found = []
    for item in policies(kit):
        if not item.has("sft"):
            continue
        actions, _ = item.act()
        mask = torch.ones(actions.shape[:2], dtype=torch.bool)
        first, last = _imitated(item, item.policy.sft_inputs(item.obs, actions) | {"action_mask": mask})
        expect(last < 0.9 * first, f"{item.name}: the loss after {IMITATION_STEPS} steps on the same four rows",
               got=f"{last:.4g}", expected=f"below nine tenths of {first:.4g}")  # fmt: skip
        mask[0] = False
        losses = []
        for shown in (actions, torch.cat([actions[1:2], actions[1:]])):
            inputs = item.policy.sft_inputs(item.obs, shown) | {"action_mask": mask}
            with torch.no_grad():
                losses.append(item.policy("sft", forward_inputs=inputs)["losses"])
        expect(_far(*losses) < CLOSE, f"{item.name}: actions that action_mask leaves out change the loss")
        found.append(f"{item.name}: {first:.3g} to {last:.3g}")
    return ", ".join(found)


def _imitated(item: Acting, inputs: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """Train a copy of the policy; returns the mean loss before and after."""
    policy = copy.deepcopy(item.policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    history: list[float] = []
    for _ in range(IMITATION_STEPS):
        losses = policy("sft", forward_inputs=inputs)["losses"]
        expect_equal(tuple(losses.shape), (ROWS,), f"{item.name}: the shape of the losses of sft_forward")
        history.append(float(losses.detach().mean()))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    return history[0], history[-1]


# --------------------------------------------------------------------- seeing
@check("policy.looks", fix="A field without effect on the answer does not belong into the observations of the example.")
def looks(kit: Context) -> str:
    """Every field that the policy is shown matters: grey pictures, other states, other words change its answer."""
    found = []
    for item in policies(kit):
        usual = item.answer()
        for field in item.obs:
            changed = item.answer({**item.obs, field: _changed(item.name, field, item.obs[field])})
            expect(not torch.equal(usual, changed), f"{item.name}: the answer does not depend on {field}")
        found.append(f"{item.name}: {', '.join(item.obs)}")
    return "; ".join(found)


def _changed(name: str, field: str, value: Any) -> Any:
    if field == _TEXTS:
        expect(len(set(value)) > 1, f"{name}: all instructions of the example's observations are the same")
        return [*value[1:], value[0]]
    if field in IMAGES:
        expect(bool((value != GREY).any()), f"{name}: {field} of the example's observations are blank")
        return torch.full_like(value, GREY)
    return value + 0.5


@check("policy.missing")
def missing_fields(kit: Context) -> None:
    """An observation without a field that the policy needs is refused with an error that names the field."""
    for item in policies(kit):
        for field in item.obs:
            rest = {name: value for name, value in item.obs.items() if name != field}
            error = expect_raises(PlugRLError, partial(item.act, rest), f"{item.name}: an observation without {field}")
            expect(field in str(error), f"{item.name}: the error without {field} does not name it", got=error)
