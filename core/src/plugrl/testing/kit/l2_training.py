"""L2, training: a tiny language model, optimizer steps, and checkpoints that travel between device and host."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import HOST, Context
from plugrl.testing.kit.golden import compare, expect_close, noise, tiny_lm, tokens

STEPS = 5
EPSILON = 1e-3
"""Large, since AdamW makes whole steps of what rounding leaves of gradients that should be zero (of key biases)."""


def _next_token_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def _on(device: torch.device, model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(device)


# --------------------------------------------------------------------- a language model
@check("L2.lm.loss_and_gradients", capability="numerics.lm", fix="The parameter that is named leads to the layer.")
def loss_and_gradients(kit: Context) -> str:
    """Loss and all gradients of a tiny language model agree with the host."""
    worst = compare(kit, "the model", tiny_lm(), [tokens()], call=_next_token_loss)
    return f"deviates by at most {worst:.0e}"


@check("L2.lm.greedy_tokens", capability="numerics.lm")
def greedy_tokens(kit: Context) -> None:
    """Sixteen greedily chosen tokens are the host's."""
    answers = []
    for device in (torch.device(HOST), kit.device()):
        model, seen = _on(device, tiny_lm()), tokens(3, 4).to(device)
        with torch.no_grad():
            for _ in range(16):
                seen = torch.cat([seen, model(seen)[:, -1].argmax(-1, keepdim=True)], dim=1)
        answers.append(seen.to(HOST).tolist())
    expect_equal(answers[1], answers[0], "the greedy continuation")


# --------------------------------------------------------------------- optimizers
def _adamw(model: nn.Module, foreach: bool | None = None) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPSILON, weight_decay=0.1, foreach=foreach)


def _train(model: nn.Module, device: torch.device, steps: int = STEPS, optimizer: Any = None) -> list[float]:
    optimizer = optimizer or _adamw(model)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _next_token_loss(model, tokens().to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@check("L2.optimizer.adamw", capability="numerics.optimizer", fix="Compare foreach=False with foreach=True.")
def adamw(kit: Context) -> str:
    """Five steps of AdamW with clipping give the host's losses and weights, with the foreach form and without it."""
    host, found = tiny_lm(), ""
    expected = _train(host, torch.device(HOST))
    for foreach in (None, False):
        there = _on(kit.device(), tiny_lm())
        optimizer = _adamw(there, foreach)
        losses = _train(there, kit.device(), optimizer=optimizer)
        worst = expect_close(kit, torch.tensor(losses), torch.tensor(expected), torch.float32, "the losses")
        for (name, parameter), reference in zip(there.named_parameters(), host.parameters(), strict=True):
            difference = (parameter.detach().to(HOST) - reference).abs().max().item()
            expect(difference <= 1e-4, f"{name} after {STEPS} steps", got=difference, expected="the host's within 1e-4")
        found = f"losses deviate by {worst:.0e}"
    expect(expected[-1] < expected[0], "the losses do not fall", got=expected)
    return found


@check("L2.optimizer.clip", capability="numerics.optimizer")
def clip(kit: Context) -> None:
    """The norm of all gradients agrees with the host, and clipping scales them to the limit."""
    norms, gradients = [], []
    for device in (torch.device(HOST), kit.device()):
        model = _on(device, tiny_lm())
        _next_token_loss(model, tokens().to(device)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).to(HOST))
        all_gradients = [item.grad.to(HOST).flatten() for item in model.parameters() if item.grad is not None]
        gradients.append(torch.cat(all_gradients))
    expect_close(kit, norms[1], norms[0], torch.float32, "the norm before clipping")
    expect_close(kit, gradients[1].norm(), torch.tensor(0.1), torch.float32, "the norm after clipping to 0.1")


# --------------------------------------------------------------------- checkpoints
@check("L2.ckpt.native_load", capability="ckpt.native_load", fix="The tag of torch.serialization keeps an index.")
def native_load(kit: Context) -> None:
    """torch.load without map_location brings tensors back to their device and index; with it, wherever it says."""
    count = kit.platform.device_count() if not kit.has_virtual_devices else 1
    for index in range(count):
        path = kit.folder / f"native-{index}.pt"
        sample = noise(5, 7, seed=index)
        torch.save({"tensor": sample.to(kit.device(index)), "view": sample.to(kit.device(index)).t()[1:]}, path)
        loaded = torch.load(path, weights_only=True)
        expect_equal(loaded["tensor"].device, kit.device(index), f"the device of a tensor saved on device {index}")
        expect(torch.equal(loaded["tensor"].to(HOST), sample), "a tensor that was loaded has other values")
        expect(torch.equal(loaded["view"].to(HOST), sample.t()[1:]), "a view that was loaded has other values")
        for target in (torch.device(HOST), kit.device(0)):
            moved = torch.load(path, map_location=target, weights_only=True)["tensor"]
            expect_equal(moved.device, target, f"the device with map_location={target}")
            expect(torch.equal(moved.to(HOST), sample), f"values with map_location={target}")


@check("L2.ckpt.deepcopy", capability="ckpt.native_load")
def deep_copies(kit: Context) -> None:
    """Copies by copy.deepcopy and by pickle keep values, device and index."""
    import pickle

    last = kit.device(kit.platform.device_count() - 1)
    sample = noise(4, 4).to(last)
    for what, made in (("copy.deepcopy", copy.deepcopy(sample)), ("pickle", pickle.loads(pickle.dumps(sample)))):
        expect_equal(made.device, last, f"the device after {what}")
        expect(torch.equal(made.to(HOST), sample.to(HOST)), f"{what} changes values")
        expect(made.data_ptr() != sample.data_ptr(), f"{what} shares the memory")


@check("L2.ckpt.roundtrip", capability="ckpt.roundtrip", fix="Optimizer states must follow their parameters' device.")
def roundtrip(kit: Context) -> None:
    """Weights and optimizer state saved on the device go on on the host as on the device, and the other way round."""
    host, device = torch.device(HOST), kit.device()
    for source, target in ((device, host), (host, device)):
        model = _on(source, tiny_lm())
        optimizer = _adamw(model)
        _train(model, source, 2, optimizer)
        path = kit.folder / "roundtrip.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        saved = torch.load(path, map_location=HOST, weights_only=True)
        other = _on(target, tiny_lm())
        resumed = _adamw(other)
        other.load_state_dict(saved["model"])
        resumed.load_state_dict(saved["optimizer"])
        kept = model.state_dict()
        for name, value in other.state_dict().items():
            expect(torch.equal(value.to(HOST), kept[name].to(HOST)), f"{name} changes from {source} to {target}")
        here, there = _train(model, source, 2, optimizer), _train(other, target, 2, resumed)
        expect_close(kit, torch.tensor(there), torch.tensor(here), torch.float32, f"losses from {source} to {target}")
