"""What the ranks of the FSDP1 tests do."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import block_policy as bp
import torch
import torch.distributed as dist
import vla_model as vla
import yaml
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from plugrl.engines.base import BatchOptions
from plugrl.errors import ConfigError
from plugrl.models import MODELS, register_model
from plugrl_engine_fsdp.backends import DdpEngine, Fsdp1Engine, Fsdp2Engine
from plugrl_engine_fsdp.checkpoint.contents import gather

ENGINES = {"fsdp": Fsdp1Engine, "fsdp2": Fsdp2Engine, "ddp": DdpEngine}
OPTIM = {"lr": 1e-2, "clip_grad": 0.5, "eps": 1e-3}
ROWS = 8


def make_engine(backend: str, config: Any, model: str = "blocks", optim: Any = None, **options: Any) -> Any:
    """An initialised engine over a small policy."""
    for name, build in (("blocks", bp.build), ("flow", vla.build)):
        if f"engine_test_{name}" not in MODELS:
            register_model(f"engine_test_{name}", build)
    model_config = {"model_type": f"engine_test_{model}", **options}
    engine = ENGINES[backend](model_config, config, {**OPTIM, **(optim or {})}, None)
    engine.initialize()
    return engine


def rows(rank: int, world: int, step: int, *, flow: bool = False) -> dict[str, torch.Tensor]:
    """This rank's rows of a step's batch."""
    batch = vla.make_batch(ROWS, seed=step) if flow else bp.make_rows(ROWS, seed=step)
    share = ROWS // world
    return bp.slice_rows(batch, rank * share, (rank + 1) * share)


def steps(engine: Any, rank: int, world: int, first: int, last: int) -> list[float]:
    """Train on micro-batches of one row, and return the gradient norms."""
    norms = []
    for step in range(first, last):
        with engine.train_mode():
            options = BatchOptions(micro_batch_size=1)
            result = engine.train_batch(rows(rank, world, step), bp.token_mean_loss, options)
        norms.append(float(result.metrics["grad_norm"]))
    return norms


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """All weights, whole."""
    return {name: tensor.detach().clone() for name, tensor in engine.get_per_tensor_param()[0]}


def optimizer_state(engine: Any) -> dict[str, torch.Tensor]:
    """The whole state of the optimizer."""
    state = engine.layout.optimizer_state(engine.module, engine.optimizer)
    slots = [(f"{name}/{slot}", value) for name, found in state.items() for slot, value in sorted(found.items())]
    return {name: gather(value, engine.device).clone() for name, value in slots}


def train(rank: int, world: int, backend: str, config: Any) -> dict[str, Any]:
    """Norms and weights of three steps, and of one more after a step that failed."""
    engine = make_engine(backend, config)
    found: dict[str, Any] = {"norms": steps(engine, rank, world, 0, 3), "layout": engine.layout.name}
    found["weights"] = weights(engine)
    engine.module.calls, engine.module.fail_at = 0, 2
    try:
        steps(engine, rank, world, 3, 4)
        found["failed"] = False
    except RuntimeError as error:
        found["failed"] = "told to fail" in str(error)
    engine.module.fail_at = None
    found["norms_after"] = steps(engine, rank, world, 3, 4)
    with engine.eval_mode():
        found["outputs"] = engine.infer_batch(rows(rank, world, 0)).outputs["logprobs"]
    found["end"] = weights(engine)
    return found


def train_and_save(rank: int, world: int, backend: str, config: Any, folder: str) -> dict[str, Any]:
    """Two steps, a checkpoint, two more."""
    engine = make_engine(backend, config)
    steps(engine, rank, world, 0, 2)
    Path(folder).mkdir(exist_ok=True)
    engine.save_checkpoint(folder, global_step=2)
    found = {"saved": weights(engine), "state": optimizer_state(engine)}
    return {**found, "norms": steps(engine, rank, world, 2, 4), "end": weights(engine)}


def resume(rank: int, world: int, backend: str, config: Any, folder: str) -> dict[str, Any]:
    """The same from the checkpoint, in another policy."""
    engine = make_engine(backend, config, seed=7)
    engine.load_checkpoint(folder)
    found = {"saved": weights(engine), "state": optimizer_state(engine)}
    return {**found, "norms": steps(engine, rank, world, 2, 4), "end": weights(engine)}


def clip_as_torch(rank: int, world: int, config: Any) -> tuple[float, float, float]:
    """The norm that the engine returns, that of FSDP's own clipping, and the norm after it."""
    engine = make_engine("fsdp", config, optim={"lr": 0.0})
    with engine.train_mode():
        engine.forward_backward_batch(rows(rank, world, 0), bp.token_mean_loss)
        theirs = float(engine.layout.callable_module(True).clip_grad_norm_(1e9))
        ours = engine.optimizer_step()
        clipped = float(engine.layout.callable_module(True).clip_grad_norm_(1e9))
    return ours, theirs, clipped


def train_flow(rank: int, world: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Two steps of the seed's example, with the dtypes that single units compute in."""
    section = {**yaml.safe_load(vla.PI05), **changes}
    backend = section["strategy"]
    engine = make_engine(backend, section, "flow", embed_dtype="bf16")
    seen: dict[str, set[str]] = {}

    def watch(path: str, module: nn.Module) -> None:
        def record(_: nn.Module, args: Any, output: torch.Tensor) -> None:
            dtypes = (getattr(module, "weight", args[0]).dtype, args[0].dtype, output.dtype)
            seen.setdefault(path, set()).add(" ".join(str(dtype).removeprefix("torch.") for dtype in dtypes))

        module.register_forward_hook(record)

    for path, module in list(engine.module.named_modules()):
        watched = ("stem", "mlp.up", "input_norm", "attention", "action_in_proj", "time_mlp_out", "mix")
        name = path.replace("_fsdp_wrapped_module.", "").removesuffix("._fsdp_wrapped_module")
        if name.endswith(watched) and not isinstance(module, FSDP):
            watch(name, module)
    losses = []
    for _ in range(2):
        with engine.train_mode():
            result = engine.train_batch(rows(rank, world, 0, flow=True), vla.flow_loss)
        losses.append(result.loss)
    parameters = {str(tensor.dtype) for tensor in weights(engine).values()}
    return {"losses": losses, "seen": {path: sorted(found) for path, found in seen.items()}, "dtypes": parameters}


def gradient_dtypes(rank: int, world: int, table: list[tuple[str, str, bool]]) -> list[set[str]]:
    """For each (strategy, reduction, keep) the dtypes of the gradients, with and without original parameters."""
    results = []
    for strategy, reduce, keep in table:
        found: set[str] = set()
        for original in (True, False):
            block = {"param_dtype": "bf16", "reduce_dtype": reduce, "keep_low_precision_grads": keep}
            config = {"sharding_strategy": strategy, "use_orig_params": original, "mixed_precision": block}
            masters = {"use_fp32_master_params": True, "fp32_master_any_layout": True}
            engine = make_engine("fsdp", config, optim=masters, blocks=1)
            with engine.train_mode():
                engine.forward_backward_batch(rows(rank, world, 0), bp.token_mean_loss)
                gradients = (parameter.grad for parameter in engine.module.parameters())
                found |= {str(grad.dtype).removeprefix("torch.") for grad in gradients if grad is not None}
                engine.optimizer_step()
        results.append(found)
    return results


def native_adamw(rank: int, world: int, cases: list[tuple[str, str]]) -> list[str]:
    """The messages with which kept gradients are refused for torch's AdamW, empty when they are not."""
    messages = []
    for strategy, reduce in cases:
        block = {"param_dtype": "bf16", "reduce_dtype": reduce, "keep_low_precision_grads": True}
        try:
            make_engine("fsdp", {"sharding_strategy": strategy, "mixed_precision": block}, blocks=1)
            messages.append("")
        except ValueError as error:
            messages.append(str(error))
    return messages


def buffers(rank: int, world: int, config: Any) -> dict[str, str]:
    """The dtype of a buffer in compute, in what checkpoints see, and in torch's full state dict."""
    engine = make_engine("fsdp", {**config, "mixed_precision": {"param_dtype": "bf16", "buffer_dtype": "bf16"}})
    with engine.eval_mode():
        engine.infer_batch(rows(rank, world, 0))
    named = engine.layout.named_tensors(engine.module)
    full = dict(engine.get_per_tensor_param()[0])
    assert any(isinstance(tensor, DTensor) for tensor in named.values()) == engine.layout.is_sharded
    return {
        "compute": str(engine.module.scale.dtype),
        "saved": str(named["model.scale"].dtype),
        "streamed": str(full["model.scale"].dtype),
        "weights": str(full["model.embed.weight"].dtype),
    }


def autocast(rank: int, world: int) -> list[str]:
    """The dtype in which a layer computes under autocast, and those of weights and gradients."""
    engine = make_engine("fsdp", {"amp_autocast": {"enabled": True, "precision": "bf16"}, "dtype": "fp32"})
    seen: list[str] = []

    def record(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        seen.append(str(output.dtype))

    block = next(module for path, module in engine.module.named_modules() if path.endswith("qkv"))
    block.register_forward_hook(record)
    with engine.train_mode():
        engine.forward_backward_batch(rows(rank, world, 0), bp.token_mean_loss)
        seen += [str(p.grad.dtype) for p in engine.module.parameters() if p.grad is not None]
    return sorted({*seen, *(str(parameter.dtype) for parameter in engine.module.parameters())})


def offload(rank: int, world: int) -> str:
    """Why parameters cannot be off-loaded here."""
    try:
        make_engine("fsdp", {"cpu_offload": True})
    except ValueError as error:
        return str(error)
    return ""


def ignored_stay_equal(rank: int, world: int) -> float:
    """How far the copies of an ignored, trained module drift apart in three steps, and its distance from the start."""
    engine = make_engine("fsdp", {"ignored_modules": r"blocks\.1\.mlp"})
    steps(engine, rank, world, 0, 3)
    held = dict(engine.module.named_parameters())
    (weight,) = (p for name, p in held.items() if name.endswith("mlp.1.weight") and ".1." in name.split("mlp")[0])
    copies = [torch.zeros_like(weight) for _ in range(world)]
    dist.all_gather(copies, weight.detach())
    return max(float((copy - copies[0]).abs().max()) for copy in copies)


def ignored_in_bf16(rank: int, world: int, backend: str, patterns: list[str | None]) -> list[list[float]]:
    """The losses of three steps in bf16 with each pattern of modules left whole."""
    losses: list[list[float]] = []
    for pattern in patterns:
        engine = make_engine(backend, {"dtype": "bf16", "ignored_modules": pattern})
        seen = []
        for step in range(3):
            with engine.train_mode():
                seen.append(engine.train_batch(rows(rank, world, step), bp.token_mean_loss).loss)
        losses.append(seen)
    return losses


def ignored_and_idle(rank: int, world: int, backend: str) -> bool:
    """Whether a step with an ignored module that is never called leaves it without gradient."""
    engine = make_engine(backend, {"ignored_modules": "spare"}, spare=True)
    steps(engine, rank, world, 0, 1)
    return all(parameter not in engine.optimizer.state for parameter in engine.module.spare.parameters())


def small_gradients(rank: int, world: int) -> list[torch.Tensor]:
    """The first moment of a weight after a step in fp16 on tiny gradients: kept low, and converted to fp32."""
    moments = []
    for keep in (True, False):
        block = {"param_dtype": "fp16", "reduce_dtype": "fp16", "keep_low_precision_grads": keep}
        config = {"sharding_strategy": "no_shard", "mixed_precision": block}
        engine = make_engine("fsdp", config, optim={"use_fp32_master_params": True})
        data = rows(rank, world, 0)
        data["advantages"] = data["advantages"] * 1e-7
        with engine.train_mode():
            engine.train_batch(data, bp.token_mean_loss)
        state = engine.layout.optimizer_state(engine.module, engine.optimizer)
        moments.append(state["model.blocks.0.mlp.1.weight"]["exp_avg"] / 0.1)
    return moments


def flat_rates(rank: int, world: int, critics: list[list[str]], **optim: Any) -> list[Any]:
    """For each list of critic parameters the elements trained at each rate in flat parameters, or the refusal."""
    found: list[Any] = []
    for index, critic in enumerate(critics):
        register_model(f"engine_test_critic{index}", functools.partial(_with_critic, critic), force=True)
        try:
            config = {"use_orig_params": False, "sharding_strategy": "no_shard"}
            engine = make_engine("fsdp", config, f"critic{index}", {**optim, "value_lr": 1.0}, blocks=2)
            groups = engine.optimizer.param_groups
            found.append({group["lr"]: sum(p.numel() for p in group["params"]) for group in groups})
        except ConfigError as error:
            found.append(str(error))
    return found


def _with_critic(critic: list[str], *args: Any, **kwargs: Any) -> bp.BlockPolicy:
    policy = bp.build(*args, **kwargs)
    policy.critic_parameters = lambda: tuple(name for name, _ in policy.named_parameters() if name in critic)
    return policy
