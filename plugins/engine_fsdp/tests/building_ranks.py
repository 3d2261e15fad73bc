"""What a rank does in the tests of how a policy is built and its weights reach the ranks."""

from __future__ import annotations

from typing import Any

import block_policy as bp
import parity
import torch
import torch.distributed as dist

from plugrl.models import MODELS, register_model
from plugrl_engine_fsdp.building import _tensors
from plugrl_engine_fsdp.checkpoint.contents import gather

BUILT: list[str] = []
"""The devices on which this process has built a policy."""


class Picky(bp.BlockPolicy):
    """A policy with other weights on every rank, and with what is hard to build without weights."""

    def __init__(self, kind: str, **options: Any) -> None:
        rank = dist.get_rank()
        super().__init__(seed=1 + rank, width=24 if kind == "other" and rank else 16, **options)
        self.register_buffer("table", torch.arange(4.0) * (1 + rank), persistent=False)
        BUILT.append(self.embed.weight.device.type)
        if kind == "reads":
            self.size = float(self.embed.weight.detach().abs().max())
        elif kind == "notes":
            self.memory = self.embed.weight.device.type  # a plain value that is another one without weights
        elif kind == "hides":
            self.hidden = {"offset": torch.zeros(1)}
        elif kind == "fails" and rank == 0:
            raise OSError("the file is on no disk")

    def default_forward(self, forward_inputs: Any, **options: Any) -> dict[str, Any]:
        outputs = super().default_forward(forward_inputs, **options)
        hidden = getattr(self, "hidden", {}).get("offset")
        return outputs if hidden is None else {**outputs, "logprobs": outputs["logprobs"] + hidden}


def build(config: Any, torch_dtype: torch.dtype | None = None) -> Picky:
    """Builder of the model type ``engine_test_picky``."""
    return Picky(config["kind"], spare=True).to(torch_dtype or torch.float32)


def start(rank: int, world: int, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Where the policy was built, what it held then, and a training step; or why it could not be built."""
    from plugrl_engine_fsdp.backends import Fsdp2Engine

    if "engine_test_picky" not in MODELS:
        register_model("engine_test_picky", build)
    BUILT.clear()
    engine = Fsdp2Engine({"model_type": "engine_test_picky", "kind": kind}, config, parity.OPTIM, None)
    try:
        engine.initialize()
    except (ValueError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    policy: Any = engine.module
    found: dict[str, Any] = {
        "built": list(BUILT),
        "weights": {name: gather(tensor, engine.device).clone() for name, tensor in _tensors(policy)},
        "tied": policy.head.weight is policy.embed.weight,
        "devices": sorted({tensor.device.type for _, tensor in _tensors(policy)}),
    }
    with engine.train_mode():
        result = engine.train_batch(parity.share_of(rank, world, 0), bp.token_mean_loss)
    found["norm"] = float(result.metrics["grad_norm"])
    return found


def device_memory(rank: int, world: int, config: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a model, and what its device held of it at most, after the start, and between training steps."""
    from plugrl_engine_fsdp.backends import Fsdp2Engine

    if "engine_test_blocks" not in MODELS:
        register_model("engine_test_blocks", bp.build)
    model = {"model_type": "engine_test_blocks", "width": 256, "blocks": 8}
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    engine = Fsdp2Engine(model, {"dtype": "fp32", **config}, parity.OPTIM, None)
    engine.initialize()
    found = {
        "model": sum(tensor.numel() * tensor.element_size() for _, tensor in _tensors(engine.module)),
        "peak": torch.accelerator.max_memory_allocated() - before,
        "start": torch.accelerator.memory_allocated() - before,
    }
    for step in range(2):
        with engine.train_mode():
            engine.train_batch(parity.share_of(rank, world, step), bp.token_mean_loss)
    found["rest"] = torch.accelerator.memory_allocated() - before
    return found
