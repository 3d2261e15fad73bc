"""What a rank does in the test of shards: recompute under the engine what an unsharded policy did, then train."""

from __future__ import annotations

from typing import Any

import torch
from tiny import make_policy, observe

from plugrl.engines.base import BatchOptions
from plugrl.engines.registry import EngineRegistry
from plugrl.metric import Metric
from plugrl_models_openvla.example import openvla

SAMPLING = {"temperature": 0.7, "top_k": 9, "top_p": 0.9}


def ratio_loss(output: Any, batch: Any, context: Any) -> tuple[torch.Tensor, dict[str, Metric]]:
    """The mean of the ratios, and of the values."""
    ratio = (output["logprobs"] - batch["prev_logprobs"]).exp()
    furthest = (ratio - 1).abs().max().item()
    return ratio.mean() + output["values"].mean(), {"furthest": Metric(furthest, "max")}


def recompute(rank: int, world: int, backend: str, config: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Act with a policy of its own, give the actions to the engine, and take two steps."""
    section = {**openvla(), "num_action_chunks": 2, **model}
    acting = make_policy(**{key: value for key, value in section.items() if key in ("num_action_chunks", "lora")})
    source = torch.Generator().manual_seed(rank)
    _, result = acting.predict_action_batch(observe(4, seed=rank), generator=source, **SAMPLING)
    batch = {**result["forward_inputs"], "prev_logprobs": result["prev_logprobs"],
             "response_mask": torch.ones(4, 2, dtype=torch.bool)}  # fmt: skip
    engine_class = EngineRegistry.get_engine_cls("embodied_model", backend)
    engine = engine_class(section, config, {"lr": 1e-3}, None)
    engine.initialize()
    asked = {**SAMPLING, "compute_values": True, "compute_entropy": True}
    options = BatchOptions(micro_batch_size=3, forward_kwargs=asked)
    found = []
    for _ in range(2):
        with engine.train_mode():
            found.append(engine.train_batch(batch, ratio_loss, options))
    sharded = sorted(name for name, parameter in engine.module.named_parameters() if hasattr(parameter, "placements"))
    return {
        "furthest": [float(step.metrics["furthest"]) for step in found], "norm": float(found[0].metrics["grad_norm"]),
        "sharded": len(sharded), "plan": str(getattr(engine, "wrap_plan", "")),
        "values": acting.predict_values(observe(4, seed=rank)).tolist(),
    }  # fmt: skip
