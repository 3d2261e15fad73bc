"""What the tests of the Python build do on its devices."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F


def training(rank: int, world: int) -> dict[str, Any]:
    """Five steps of a small network on either side, and one pass of blocks with convolutions and attention."""
    return {device: (_steps(device), _blocks(device)) for device in ("cpu", "vdev:1")}


def _steps(device: str) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    model.to(device)
    inputs, losses = torch.randn(5, 8).to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _blocks(device: str) -> list[float]:
    torch.manual_seed(0)
    image, table = torch.nn.Conv2d(3, 4, 3).to(device), torch.nn.Embedding(10, 8).to(device)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).to(device)
    pixels, tokens = torch.randn(2, 3, 8, 8).to(device), torch.randint(10, (2, 5)).to(device)
    target = torch.randn(2, 5, 8).to(device)
    (image(pixels).square().sum() + F.mse_loss(layer(table(tokens)), target)).backward()
    gradients = [image.weight.grad, table.weight.grad, layer.linear1.weight.grad]
    return [float(gradient.cpu().abs().sum()) for gradient in gradients if gradient is not None]


def basics(rank: int, world: int) -> dict[str, Any]:
    """Devices, values, aliases and copies."""
    tensor = torch.arange(6.0, device="vdev:1").view(2, 3)
    tensor[1].add_(10)
    moved = tensor.to("vdev:0")
    index = torch.tensor([1])
    found = {
        "repr": repr(torch.ones(2, device="vdev:1")),
        "values": tensor.tolist(),
        "index": tensor[index].cpu().tolist(),
        "mask": tensor[tensor > 10].tolist(),
        "moved": (str(moved.device), moved.cpu().tolist() == tensor.tolist()),
        "deepcopy": str(copy.deepcopy(tensor).device),
        "literal": torch.tensor([1.5], device="vdev").tolist(),
        "meta": str(torch.nn.Linear(2, 2, device="meta").to_empty(device="vdev:1").weight.device),
        "accelerator": (torch.accelerator.device_count(), str(torch.accelerator.current_accelerator())),
    }
    with torch.vdev.device(1):
        found["context"] = str(torch.zeros(1, device="vdev").device)
    found["after"] = torch.vdev.current_device()
    return found


def random_numbers(rank: int, world: int) -> dict[str, bool]:
    """What holds of generators."""
    vdev, host = torch.vdev, torch.get_rng_state()
    vdev.manual_seed_all(3)
    other = vdev.get_rng_state(1)
    first, second = torch.rand(4, device="vdev:0").cpu(), torch.rand(4, device="vdev:0").cpu()
    state = vdev.get_rng_state(0)
    third = torch.randn(4, device="vdev:0").cpu()
    vdev.set_rng_state(state, 0)
    again = torch.randn(4, device="vdev:0").cpu()
    vdev.manual_seed_all(3)
    return {
        "draws differ": not torch.equal(first, second),
        "seed repeats": torch.equal(first, torch.rand(4, device="vdev:0").cpu()),
        "state repeats": torch.equal(third, again) and state.numel() == 16,
        "host untouched": torch.equal(host, torch.get_rng_state()),
        "other device untouched": torch.equal(other, vdev.get_rng_state(1)),
    }


def refusals(rank: int, world: int) -> dict[str, str]:
    """The texts of what must not work."""
    here = torch.ones(2, device="vdev:0")
    calls = {
        "two devices": lambda: here + torch.ones(2, device="vdev:1"),
        "host": lambda: here + torch.ones(2),
        "index": lambda: torch.ones(2, device="vdev:7"),
        "chosen": lambda: torch.vdev.set_device(2),
        "resize": lambda: here.clone().resize_(9),
        "pickle": lambda: here.__reduce_ex__(2),
    }
    texts = {}
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, NotImplementedError) as error:
            texts[name] = f"{type(error).__name__}: {error}"
    return texts


def offered(rank: int, world: int) -> tuple[str, ...]:
    """What the platform says that this build can do."""
    from plugrl.platforms import get_platform

    return get_platform().offered_capabilities(("platform.rng", "platform.memory.limit", "dist.fsdp2"))
