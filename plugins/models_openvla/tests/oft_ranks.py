"""What a rank does in the tests of OpenVLA-OFT under a sharding engine."""

from __future__ import annotations

from typing import Any

import torch
from oft_tiny import observations, policy, section

from plugrl.engines.base import BatchOptions
from plugrl.engines.registry import EngineRegistry

SAMPLING = {"temperature": 1.4, "top_k": 9, "top_p": 0.9}
OPTIM = {"lr": 1e-2, "clip_grad": 1.0, "total_training_steps": 4}


def first_update(rank: int, world: int, backend: str, keys: dict[str, Any]) -> dict[str, float]:
    """How far the ratios of the first update are from 1 under the engine, when a whole policy acted; and a step.

    ``change``: how far the ratios are from 1 after the step.
    """
    acted = policy(**keys)
    obs = observations(rows=4, cameras=keys.get("num_images_in_input", 1))
    _, result = acted.predict_action_batch(obs, generator=torch.Generator().manual_seed(0), **SAMPLING)
    rows = {**result["forward_inputs"], "prev_logprobs": result["prev_logprobs"], "prev_values": result["prev_values"]}
    share = slice(rank * 4 // world, (rank + 1) * 4 // world)
    data = {name: tensor[share] for name, tensor in rows.items()}
    engine = EngineRegistry.get_engine_cls("embodied_model", backend)(section(**keys), {"dtype": "fp32"}, OPTIM, None)
    engine.initialize()
    options = BatchOptions(micro_batch_size=1, forward_kwargs={**SAMPLING, "compute_values": True})
    found = {"ratio": 0.0, "values": 0.0, "change": 0.0}

    def loss(outputs: Any, batch: Any, _: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        ratio = (outputs["logprobs"] - batch["prev_logprobs"]).exp()
        found["ratio"] = max(found["ratio"], (ratio - 1).abs().max().item())
        found["values"] = max(found["values"], (outputs["values"] - batch["prev_values"]).abs().max().item())
        return -(ratio.mean() + outputs["values"].mean()) / len(data["input_ids"]), {}

    with engine.train_mode():
        found["norm"] = float(engine.train_batch(data, loss, options).metrics["grad_norm"])
    with engine.eval_mode():
        outputs = engine.infer_batch(data, None, options).outputs
    found["change"] = (outputs["logprobs"] - data["prev_logprobs"]).abs().max().item()
    return found
