"""The scenarios of the layout tests: each leaves scalars (JSON) and tensors (safetensors) behind.

The test runs the layouts of one rank itself, and a pool of processes those of two. The results go to
``FOLDER/<backend>-<world>/``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import block_policy as bp
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from plugrl.engines.base import BatchOptions
from plugrl.models import MODELS, register_model
from plugrl_engine_fsdp.backends import DdpEngine, Fsdp2Engine

ENGINES = {"fsdp2": Fsdp2Engine, "ddp": DdpEngine}
ROWS = 8
# A large eps, since AdamW would blow up the rounding errors of gradients that are zero by symmetry (key biases).
OPTIM = {"lr": 1e-2, "clip_grad": 0.5, "lr_scheduler_type": "cosine", "lr_warmup_steps": 1, "total_training_steps": 10,
         "eps": 1e-3}  # fmt: skip
SPLITS = {
    "whole": BatchOptions(),
    "two": BatchOptions(micro_batch_size=2),
    "one": BatchOptions(micro_batch_size=1),
    "tokens": BatchOptions(max_tokens=16),
}


HF_TOKENIZER = {"type": "characters", "alphabet": "0123456789+="}
HF_CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": True,
}


class Recorder:
    """Where a rank leaves results; tensors are kept by rank 0 alone."""

    def __init__(self, folder: Path, rank: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rank = folder, rank
        self.scalars: dict[str, Any] = {}
        self.tensors: dict[str, torch.Tensor] = {}

    def keep(self, prefix: str, tensors: Any) -> None:
        """Consume a collective stream of named tensors."""
        for name, tensor in tensors:
            self.tensors[f"{prefix}/{name}"] = tensor.detach().float().clone().contiguous()

    def write(self) -> None:
        """Write ``rank<r>.json`` and, on rank 0, ``tensors.safetensors``."""
        (self.folder / f"rank{self.rank}.json").write_text(json.dumps(self.scalars))
        if self.rank == 0:
            save_file(self.tensors, self.folder / "tensors.safetensors")


def make_engine(backend: str, *, optim: Any = OPTIM, config: Any = None, **model: Any) -> Any:
    """An initialised engine over a small policy."""
    engine = ENGINES[backend]({"model_type": "engine_test_blocks", **model}, config or {}, optim, None)
    engine.initialize()
    return engine


def share(rank: int, world: int, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Uneven rows: rank 0 of two takes five of eight."""
    cut = ROWS if world == 1 else 5
    return bp.slice_rows(batch, *((0, cut) if rank == 0 else (cut, ROWS)))


def mean_over_ranks(value: float) -> float:
    """Average a float over the ranks."""
    if not dist.is_initialized():
        return value
    tensor = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor) / dist.get_world_size()


def check_splits(backend: str, rank: int, world: int, out: Recorder) -> None:
    """Loss, gradient and norm of one batch for every way to split it, then three training steps."""
    for name, options in SPLITS.items():
        engine = make_engine(backend)
        data = share(rank, world, bp.make_rows(ROWS))
        with engine.train_mode():
            result = engine.forward_backward_batch(data, bp.token_mean_loss, options=options)
            out.scalars[f"split/{name}/loss"] = mean_over_ranks(result.loss)
            out.keep(f"split/{name}/grad", bp.named_gradients(engine))
            out.scalars[f"split/{name}/norm"] = engine.optimizer_step()
            out.keep(f"split/{name}/clipped", bp.named_gradients(engine))
        losses = []
        with engine.train_mode():
            for step in range(3):
                data = share(rank, world, bp.make_rows(ROWS, seed=step))
                result = engine.train_batch(data, bp.token_mean_loss, options)
                losses.append(mean_over_ranks(result.loss))
        out.scalars[f"split/{name}/losses"] = losses
        out.scalars[f"split/{name}/lr"] = float(result.metrics["lr"])
        out.keep(f"split/{name}/param", engine.get_per_tensor_param()[0])


def check_inference(backend: str, rank: int, world: int, out: Recorder) -> None:
    """Outputs of all rows in their order; a forward-only engine gives the same."""
    data = share(rank, world, bp.make_rows(ROWS))
    for forward_only in (False, True):
        engine = make_engine(backend, optim=None if forward_only else OPTIM, config={"forward_only": forward_only})
        options = BatchOptions(max_tokens=16, forward_kwargs={"compute_entropy": True, "temperature": 0.7})
        with engine.eval_mode():
            result = engine.infer_batch(data, options=options)
        for key, value in result.outputs.items():
            out.scalars[f"infer/{forward_only}/{key}"] = value.tolist()


def check_config_variants(backend: str, rank: int, world: int, out: Recorder) -> None:
    """Off-loading, resharding and bf16 change nothing, or little."""
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "offload": {"param_offload": True, "optimizer_offload": True},
        "keep": {"reshard_after_forward": False},
        "by_size": {"wrap_policy": {"min_num_params": 600}},
        "bf16": {"dtype": "bf16"},
    }
    for name, config in variants.items():
        engine = make_engine(backend, config=config)
        losses, norms = [], []
        for step in range(3):
            with engine.train_mode():
                data = share(rank, world, bp.make_rows(ROWS, seed=step))
                result = engine.train_batch(data, bp.token_mean_loss, SPLITS["two"])
            losses.append(mean_over_ranks(result.loss))
            norms.append(float(result.metrics["grad_norm"]))
            engine.to("cpu")
            engine.to(engine.device.type)
        out.scalars[f"variant/{name}/losses"] = losses
        out.scalars[f"variant/{name}/norms"] = norms
        out.scalars[f"variant/{name}/dtypes"] = sorted({str(p.dtype) for p in engine.module.parameters()})
        out.keep(f"variant/{name}/param", engine.get_per_tensor_param()[0])


def check_faults(backend: str, rank: int, world: int, out: Recorder) -> None:
    """A gradient that is not finite skips the step; an exception in a step leaves nothing behind."""
    engine = make_engine(backend)
    with engine.train_mode():
        out.keep("fault/before", engine.get_per_tensor_param()[0])
        data = share(rank, world, bp.make_rows(ROWS))
        poisoned = {**data, "advantages": data["advantages"].clone()}
        if rank == world - 1:
            poisoned["advantages"][0, 0] = float("inf")
        result = engine.train_batch(poisoned, bp.token_mean_loss, SPLITS["two"])
        out.scalars["fault/norm_finite"] = bool(torch.isfinite(torch.tensor(float(result.metrics["grad_norm"]))))
        out.scalars["fault/skipped"] = float(result.metrics["skipped_steps"])
        out.keep("fault/after", engine.get_per_tensor_param()[0])
    engine.module.calls, engine.module.fail_at = 0, 2
    try:
        with engine.train_mode():
            engine.train_batch(data, bp.token_mean_loss, SPLITS["one"])
        out.scalars["fault/raised"] = False
    except RuntimeError:
        out.scalars["fault/raised"] = True
    engine.module.fail_at = None
    with engine.train_mode():
        result = engine.forward_backward_batch(data, bp.token_mean_loss, options=SPLITS["two"])
        out.scalars["fault/norm_after"] = engine.optimizer_step()


def check_checkpoints(backend: str, rank: int, world: int, out: Recorder) -> None:
    """Save after two steps, go on for two, and go on again from the checkpoint: bit-equal, dropout included."""

    def steps(engine: Any, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            with engine.train_mode():
                data = share(rank, world, bp.make_rows(ROWS, seed=step))
                losses.append(engine.train_batch(data, bp.token_mean_loss, SPLITS["two"]).loss)
        return losses

    folder = out.folder / "checkpoint"
    engine = make_engine(backend, dropout=0.2)
    torch.manual_seed(100 + rank)
    steps(engine, 0, 2)
    engine.save_checkpoint(str(folder), global_step=2)
    out.keep("checkpoint/saved", engine.get_per_tensor_param()[0])
    out.scalars["checkpoint/losses"] = steps(engine, 2, 4)
    out.keep("checkpoint/end", engine.get_per_tensor_param()[0])

    resumed = make_engine(backend, dropout=0.2, seed=7)
    torch.manual_seed(500 + rank)
    resumed.load_checkpoint(str(folder))
    out.scalars["checkpoint/resumed_losses"] = steps(resumed, 2, 4)
    out.keep("checkpoint/resumed_end", resumed.get_per_tensor_param()[0])


def check_hugging_face(backend: str, rank: int, world: int, out: Recorder) -> None:
    """Two steps of a tiny Hugging Face model with recomputed activations, saved as its family saves it."""
    if "causal_lm" not in MODELS:
        return
    model = {"model_type": "causal_lm", "config": HF_CONFIG, "precision": "fp32", "enable_gradient_checkpointing": True}
    engine = ENGINES[backend]({**model, "tokenizer": HF_TOKENIZER}, None, OPTIM, None)
    engine.initialize()
    norms = []
    for step in range(2):
        rows = {
            key: value % 10 if key == "input_ids" else value for key, value in bp.make_rows(ROWS, seed=step).items()
        }
        with engine.train_mode():
            result = engine.train_batch(share(rank, world, rows), bp.token_mean_loss, SPLITS["two"])
        norms.append(float(result.metrics["grad_norm"]))
    out.scalars["hf/norms"] = norms
    out.keep("hf/param", engine.get_per_tensor_param()[0])
    engine.save_checkpoint(str(out.folder / "hf"), global_step=2)


CHECKS = (check_splits, check_inference, check_config_variants, check_faults, check_checkpoints, check_hugging_face)


def run_checks(backend: str, rank: int, world: int, folder: Path) -> None:
    """Run everything for one layout; results go to ``folder/<backend>-<world>``."""
    out = Recorder(folder / f"{backend}-{world}", rank)
    for check in CHECKS:
        check(backend, rank, world, out)
    out.write()


def run_two_ranks(rank: int, world: int, folder: str) -> None:
    """Run every layout as one of two ranks."""
    register_model("engine_test_blocks", bp.build)
    for backend in ENGINES:
        run_checks(backend, rank, world, Path(folder))
