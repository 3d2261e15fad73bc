"""What a rank does in the adapter tests: train a LoRA adapter on a tiny language model, save it, load it elsewhere."""

from __future__ import annotations

from typing import Any

import block_policy as bp
import parity
import resharding
import torch
from torch.distributed.tensor import DTensor

from plugrl.engines.base import BatchOptions
from plugrl.engines.registry import EngineRegistry
from plugrl_engine_fsdp.checkpoint.contents import gather, weights

STEPS = 2
LORA = {"rank": 4, "alpha": 8, "init": "random", "modules_to_save": ["lm_head"]}
MODEL = {
    "model_type": "causal_lm",
    "precision": "fp32",
    "tokenizer": {"type": "characters", "alphabet": "".join(map(chr, range(65, 94)))},
    "lora": LORA,
    "config": {
        "model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip


def make_engine(backend: str, config: dict[str, Any], checkpoint: Any = None, **model: Any) -> Any:
    """An initialised engine around the adapter."""
    engine_class = EngineRegistry.get_engine_cls("language_model", backend)
    engine = engine_class({**MODEL, **model}, {"dtype": "fp32", **config}, parity.OPTIM, checkpoint)
    engine.initialize()
    return engine


def train(engine: Any, rank: int, world: int, first: int, last: int) -> list[float]:
    """Steps of two micro-batches each; the losses of the whole batches and the norms of their gradients."""
    rows = parity.GLOBAL_ROWS // world
    seen = []
    for step in range(first, last):
        with engine.train_mode():
            data = parity.share_of(rank, world, step)
            result = engine.train_batch(data, bp.token_mean_loss, BatchOptions(micro_batch_size=rows // 2))
        seen += [parity.mean_over_ranks(result.loss), float(result.metrics["grad_norm"])]
    return seen


def state_of(engine: Any) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of weights and optimizer, whole, and the merged weights. Collective."""
    found = {f"saved/{name}": gather(tensor, engine.device).clone() for name, tensor in weights(engine).items()}
    for name, slots in engine.layout.optimizer_state(engine.module, engine.optimizer).items():
        found.update({f"{slot}/{name}": gather(value, engine.device).clone() for slot, value in slots.items()})
    merged, config = engine.get_per_tensor_param()
    assert config is None
    found.update({f"merged/{name}": tensor.clone() for name, tensor in merged})
    return found


def write(
    rank: int, world: int, backend: str, config: dict[str, Any], checkpoint: dict[str, Any], folder: str, **model: Any
) -> dict[str, Any]:
    """Train, save into ``folder/000002``, train on."""
    engine = make_engine(backend, config, checkpoint, **model)
    seen = train(engine, rank, world, 0, STEPS)
    resharding.save(engine, folder, STEPS, rank)
    saved = state_of(engine)
    seen += train(engine, rank, world, STEPS, 2 * STEPS)
    spread = {name: isinstance(p, DTensor) for name, p in engine.module.named_parameters()}
    result = {"saved": saved, "seen": seen, "end": state_of(engine), "spread": spread}
    return result if rank == 0 else {}


def read(rank: int, world: int, backend: str, config: dict[str, Any], folders: list[str]) -> list[dict[str, Any]]:
    """Load each folder into an engine whose own adapter started from other values, and train on."""
    results = []
    for folder in folders:
        engine = make_engine(backend, config, lora={**LORA, "init": "gaussian"})
        engine.load_checkpoint(folder)
        loaded = state_of(engine)
        seen = train(engine, rank, world, STEPS, 2 * STEPS)
        end = state_of(engine)
        results.append({"loaded": loaded, "seen": seen, "end": end} if rank == 0 else {})
    return results


def exchange(
    rank: int,
    world: int,
    writers: dict[str, tuple[str, dict[str, Any], dict[str, Any]]],
    readers: dict[str, tuple[str, dict[str, Any]]],
    root: str,
    folders: list[str],
) -> dict[str, Any]:
    """Let every writer save into ``root/<writer>``, then every reader load those and ``folders``."""
    wrote = {name: write(rank, world, *writer, f"{root}/{name}") for name, writer in writers.items()}
    all_folders = [*folders, *(f"{root}/{name}/{STEPS:06d}" for name in writers)]
    return {"wrote": wrote, "read": {name: read(rank, world, *reader, all_folders) for name, reader in readers.items()}}


def half(rank: int, world: int, backend: str, config: dict[str, Any]) -> dict[str, Any]:
    """A bf16 base under an adapter: dtypes, a step, and the policy with and without its adapter."""
    config = {"dtype": "bf16", "model_dtype": "bf16", **config}
    engine = make_engine(backend, config, enable_gradient_checkpointing=True)
    dtypes = {(p.requires_grad, p.dtype) for p in engine.module.parameters()}
    seen = train(engine, rank, world, 0, STEPS)
    rows = parity.share_of(0, 1, 7)
    with engine.eval_mode():
        changed = engine.infer_batch(rows).outputs["logprobs"]
        with engine.disable_adapter():
            frozen = engine.infer_batch(rows).outputs["logprobs"]
        again = engine.infer_batch(rows).outputs["logprobs"]
    plain_class = EngineRegistry.get_engine_cls("language_model", "ddp")
    plain = plain_class({**MODEL, "lora": None}, {**config, "forward_only": True}, None, None)
    plain.initialize()
    with plain.eval_mode():
        base = plain.infer_batch(rows).outputs["logprobs"]
    adapter, settings = engine.get_per_tensor_param(merged=False)
    names = [name for name, _ in adapter]
    return {
        "dtypes": dtypes, "seen": seen, "changed": changed, "frozen": frozen, "again": again, "base": base,
        "names": names, "rank": settings["r"], "saved": {t.dtype for t in weights(engine).values()},
    }  # fmt: skip
