"""The kit for models: what every policy promises, shown on the tiny example that a model type declares."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from plugrl.errors import CheckpointError
from plugrl.models.base import BasePolicy
from plugrl.registry import import_target
from plugrl.testing.kit.checks import CheckSkipped, check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import Context

PROMPT, RESPONSE = 5, 4
SMALLEST_TOKEN, LARGEST_TOKEN = 3, 12
"""Tokens that the tiny examples must know."""


def examples(kit: Context) -> Iterator[tuple[str, str, BasePolicy]]:
    """Yield name, category and a fresh policy of each model type of the plugin that declares an example."""
    from plugrl.models import get_model

    kit.platform  # noqa: B018  (builders ask for it)
    entries = [entry for entry in kit.entries("model") if entry.meta.get("example")]
    if not entries:
        raise CheckSkipped("no model type of the plugin declares an example: ModelEntry(example=...)")
    for entry in entries:
        policy = get_model(import_target(entry.meta["example"])(), "fp32")
        yield str(entry.key), str(entry.meta.get("category", "language")), policy.eval()


def text_batch(padding: int = 0) -> dict[str, torch.Tensor]:
    """Return three rows in the text layout with padding on either side, and ``padding`` columns more on the left."""
    source = torch.Generator().manual_seed(3)
    ids = torch.randint(SMALLEST_TOKEN, LARGEST_TOKEN, (3, PROMPT + RESPONSE), generator=source)
    attention = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1, 0], [1] * 9])
    response = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    wider = [torch.nn.functional.pad(item, (padding, 0)) for item in (ids * attention, attention)]
    return {"input_ids": wider[0], "attention_mask": wider[1], "response_mask": response}


def _asked_for(category: str) -> tuple[str, dict[str, Any]]:
    return ("values", {"compute_values": True}) if category == "value" else ("logprobs", {"compute_entropy": True})


def _texts(kit: Context) -> Iterator[tuple[str, str, BasePolicy]]:
    found = [item for item in examples(kit) if item[1] in ("language", "value")]
    if not found:
        raise CheckSkipped("no model type of the plugin reads text")
    yield from found


@check("model.builds", gate=True)
def builds(kit: Context) -> str:
    """The builder returns a policy that says what it can do."""
    found = []
    for name, _, policy in examples(kit):
        expect(isinstance(policy, BasePolicy), f"{name}: the builder returns no BasePolicy", got=type(policy).__name__)
        expect("default" in policy.forward_types(), f"{name}: it has no default forward")
        found.append(f"{name} ({', '.join(sorted(policy.capabilities()))})")
    return "; ".join(found)


@check("model.forward")
def forward(kit: Context) -> None:
    """The forward returns [B, T] that is zero outside the response, is the same when repeated, and has gradients."""
    batch = text_batch()
    for name, category, policy in _texts(kit):
        key, options = _asked_for(category)
        found = policy(forward_inputs=batch, **options)[key]
        expect_equal(tuple(found.shape), (3, RESPONSE), f"{name}: the shape of {key}")
        expect((found[batch["response_mask"] == 0] == 0).all(), f"{name}: {key} outside the response are not zero")
        expect(torch.isfinite(found).all(), f"{name}: {key} are not finite")
        if category == "language":
            expect((found <= 0).all(), f"{name}: a log-probability is above zero")
        expect(torch.equal(found, policy(forward_inputs=batch, **options)[key]), f"{name}: a second forward differs")
        found.sum().backward()
        expect(any(item.grad is not None and item.grad.any() for item in policy.parameters()),
               f"{name}: no parameter has a gradient")  # fmt: skip


@check("model.padding", fix="Positions count from the first token under attention_mask.")
def padding(kit: Context) -> None:
    """More padding on the left changes nothing."""
    for name, category, policy in _texts(kit):
        key, options = _asked_for(category)
        with torch.no_grad():
            plain, padded = (policy(forward_inputs=text_batch(width), **options)[key] for width in (0, 4))
        expect(torch.allclose(plain, padded, atol=1e-4), f"{name}: {key} with four columns of padding more",
               got=(plain - padded).abs().max().item(), expected="the same within 1e-4")  # fmt: skip


@check("model.temperature")
def temperature(kit: Context) -> None:
    """A high temperature brings log-probabilities to those of the uniform distribution and raises the entropy."""
    batch = text_batch()
    for name, category, policy in _texts(kit):
        if category != "language":
            continue
        with torch.no_grad():
            usual = policy(forward_inputs=batch, compute_entropy=True)
            hot = policy(forward_inputs=batch, compute_entropy=True, temperature=1e4)
        shown = batch["response_mask"] == 1
        flat = hot["logprobs"][shown]
        expect((flat - flat.mean()).abs().max() < 1e-2, f"{name}: at temperature 10000 tokens differ", got=flat)
        expect((hot["entropy"][shown] + 1e-4 >= usual["entropy"][shown]).all(), f"{name}: heat lowers the entropy")


@check("model.declared_names")
def declared_names(kit: Context) -> None:
    """The units to be sharded and the targets of adapters that the policy names are there."""
    for name, _, policy in examples(kit):
        classes = {type(module).__name__ for module in policy.modules()}
        absent = [unit for unit in policy.wrap_units() if unit not in classes]
        expect(not absent, f"{name}: wrap_units names classes that no module has", got=absent)
        modules = [path for path, _ in policy.named_modules()]
        absent = [target for target in policy.lora_targets()
                  if not any(path == target or path.endswith(f".{target}") for path in modules)]  # fmt: skip
        expect(not absent, f"{name}: lora_targets names modules that are not there", got=absent)


@check("model.weights", fix="published_name must be one to one, None for tied duplicates.")
def weights(kit: Context) -> None:
    """Weights under published names load into another policy bit for bit; a missing or unknown tensor is refused."""
    for (name, _, policy), (_, _, other) in zip(examples(kit), examples(kit), strict=True):
        state = [(policy.published_name(key), value) for key, value in policy.state_dict().items()]
        published = [(key, value) for key, value in state if key is not None]
        names = [key for key, _ in published]
        expect_equal(len(set(names)), len(names), f"{name}: the number of distinct published names")
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.fill_(0.01)
        other.load_published(iter(published))
        for key, value in policy.state_dict().items():
            expect(torch.equal(other.state_dict()[key], value), f"{name}: {key} differs after load_published")
        more = [*published, ("no.such.tensor", torch.zeros(1))]
        for wrong, what in ((published[:-1], "a tensor less"), (more, "an unknown tensor")):
            expect_raises(CheckpointError, partial(other.load_published, iter(wrong)), f"{name}: {what}")


@check("model.save_pretrained")
def save_pretrained(kit: Context) -> None:
    """save_pretrained writes a folder whose weights are those that were given."""
    from safetensors.torch import load_file

    for number, (name, _, policy) in enumerate(examples(kit)):
        state = {policy.published_name(key): value for key, value in policy.state_dict().items()}
        tensors = {key: value for key, value in state.items() if key is not None}
        folder = kit.folder / f"model-{number}"
        policy.save_pretrained(folder, tensors)
        written: dict[str, torch.Tensor] = {}
        for file in folder.glob("*.safetensors"):
            written.update(load_file(file))
        absent = [key for key, value in tensors.items() if key not in written or not torch.equal(written[key], value)]
        expect(not absent, f"{name}: not in the folder as they were given", got=absent)
