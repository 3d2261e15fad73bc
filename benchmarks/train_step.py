"""The engine's training step against the same step written in bare torch, with the same wrapping.

Same policy, batch, micro-batches, loss and optimizer; both live in one process per rank, started with the variables
that workers get from the platform, and take turns, so that noise of the machine meets both alike; half of the rounds
are run in processes that build the one first, half in others that build the other first. Prints the ratio of
the medians (of elapsed time, which is judged, and of processor time, which other programs disturb less) and what bounds
the step. Peak memory is measured in processes that run one of the two alone: what the step adds to the process with its
modules imported, on the rank that needs most. Writes JSON when asked, and exits with 1 when the engine is more than
``--limit`` slower or larger in any layout.

    python benchmarks/train_step.py [--rounds 30] [--json FILE] [--only ddp-1 fsdp2-2 hsdp-4 ...]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from plugrl.algorithms import policy_loss
from plugrl.engines.base import BatchOptions, LossContext
from plugrl.engines.registry import EngineRegistry
from plugrl.metric import Metric
from plugrl.models import get_model
from plugrl.platforms import get_platform
from plugrl.plugins import load_plugins

LAYOUTS = ("ddp-1", "fsdp2-1", "ddp-2", "fsdp2-2", "fsdp2-4", "hsdp-4")
ENGINES = {"hsdp": ("fsdp2", {"parallelism": {"dp_replicate": 2, "dp_shard": 2}})}
OPTIM = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "clip_grad": 1.0}
MODEL = {
    "model_type": "causal_lm",
    "precision": "fp32",
    "seed": 0,
    "tokenizer": {"type": "characters", "alphabet": "0123456789+-=*"},
    "config": {
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 2048,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    },
}
PROMPT, RESPONSE = 16, 48
ROWS_PER_RANK, MICRO_BATCH = 16, 4
MEMORY_STEPS = 3
MEMORY_SHAPE = {"hidden_size": 384, "intermediate_size": 1152, "vocab_size": 4096}
"""A larger model for memory: what Python takes shall not count for much."""
Step = Callable[[], float]


def make_batch(seed: int) -> dict[str, torch.Tensor]:
    """One rank's rows: full prompts, responses of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS_PER_RANK, PROMPT + RESPONSE)
    mask = torch.arange(RESPONSE) < torch.randint(RESPONSE // 2, RESPONSE + 1, (ROWS_PER_RANK, 1), generator=generator)
    return {
        "input_ids": torch.randint(0, MODEL["config"]["vocab_size"], shape, generator=generator),
        "attention_mask": torch.cat((torch.ones(ROWS_PER_RANK, PROMPT, dtype=torch.bool), mask), 1).long(),
        "response_mask": mask.long(),
        "old_log_probs": torch.full((ROWS_PER_RANK, RESPONSE), -8.0),
        "advantages": torch.randn(ROWS_PER_RANK, RESPONSE, generator=generator),
    }


def loss_function(outputs: Any, batch: Any, context: LossContext) -> tuple[torch.Tensor, dict[str, Metric]]:
    """PPO's clipped loss, mean over all tokens of all ranks."""
    loss, metrics = policy_loss(
        outputs["logprobs"],
        batch["old_log_probs"],
        batch["advantages"],
        batch["response_mask"],
        clip_low=0.2,
        clip_high=0.2,
        dp_size=context.dp_size,
        batch_num_tokens=context.batch_num_tokens,
        global_batch_size=context.global_batch_size,
    )
    return loss, {name: Metric(value) for name, value in metrics.items()}


def engine_step(backend: str, batch: dict[str, torch.Tensor]) -> Step:
    """One step of the engine."""
    name, section = ENGINES.get(backend, (backend, None))
    engine = EngineRegistry.new("language_model", name, MODEL, section, OPTIM, None)
    engine.initialize()
    options = BatchOptions(micro_batch_size=MICRO_BATCH)

    def step() -> float:
        with engine.train_mode():
            return float(engine.train_batch(batch, loss_function, options).metrics["grad_norm"])

    return step


def bare_step(backend: str, world: int, batch: dict[str, torch.Tensor]) -> Step:
    """The same by hand, as one would write it for this layout alone."""
    module: Any = get_model(MODEL, torch_dtype=torch.float32)
    sharded = world > 1 and backend != "ddp"
    if sharded:
        shape = (2, world // 2) if backend == "hsdp" else (world,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for layer in module.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
    elif world > 1:
        module = DistributedDataParallel(module, forward_sync_buffers=False)
    options = {key: value for key, value in OPTIM.items() if key != "clip_grad"}
    optimizer = torch.optim.AdamW(module.parameters(), fused=True, **options)
    parts = [{key: value[start : start + MICRO_BATCH] for key, value in batch.items()}
             for start in range(0, ROWS_PER_RANK, MICRO_BATCH)]  # fmt: skip

    def step() -> float:
        mask = batch["response_mask"]
        counts = torch.stack((mask.sum(), mask.any(1).sum()))
        if world > 1:
            dist.all_reduce(counts)
        tokens, rows = counts.tolist()
        context = LossContext(dp_size=world, batch_num_tokens=tokens, global_batch_size=rows)
        optimizer.zero_grad(set_to_none=True)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if sharded:
                module.set_requires_gradient_sync(last)
            with module.no_sync() if world > 1 and backend == "ddp" and not last else nullcontext():
                outputs = module(forward_type="default", forward_inputs=part)
                loss_function(outputs, part, context)[0].backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), OPTIM["clip_grad"])
        optimizer.step()
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    return step


def measure(backend: str, world: int, rank: int, rounds: int, first: str) -> dict[str, Any]:
    """Alternate the two steps; seconds of each on this rank, and what the engine's step spends its time on.

    ``first`` is built first: whose memory lies where decides about some percent of the time.
    """
    batch = make_batch(rank)
    build = {"engine": lambda: engine_step(backend, batch), "bare": lambda: bare_step(backend, world, batch)}
    built = {name: build[name]() for name in sorted(build, key=lambda name: name != first)}
    steps = {name: built[name] for name in build}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    processor_seconds: dict[str, list[float]] = {name: [] for name in steps}
    norms: dict[str, list[float]] = {name: [] for name in steps}
    for index in range(rounds + 2):
        # Whoever goes second finds warmer caches: take turns in that too.
        for name in list(steps) if index % 2 else list(steps)[::-1]:
            if world > 1:
                dist.barrier()
            start, processor_start = time.perf_counter(), time.process_time()
            norms[name].append(steps[name]())
            if index >= 2:
                seconds[name].append(time.perf_counter() - start)
                processor_seconds[name].append(time.process_time() - processor_start)
    assert all(abs(a - b) < 1e-3 * max(abs(b), 1) for a, b in zip(*norms.values(), strict=True)), norms
    return {"seconds": seconds, "processor_seconds": processor_seconds, "bounds": profile(steps["engine"])}


def peak_memory(which: str, backend: str, world: int, rank: int) -> int:
    """Bytes that building one of the two and running it for some steps adds to this process, at most."""
    batch = make_batch(rank)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = engine_step(backend, batch) if which == "engine" else bare_step(backend, world, batch)
    for _ in range(MEMORY_STEPS):
        step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def profile(step: Step) -> dict[str, float]:
    """Shares of one step's time by kind of operation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    kinds = {"matrix products": ("mm", "linear", "attention"), "optimizer": ("adam",), "collectives": ("gloo", "c10d")}
    times = dict.fromkeys((*kinds, "other operations"), 0.0)
    for event in profiler.key_averages():
        kind = next((k for k, words in kinds.items() if any(word in event.key.lower() for word in words)), None)
        times[kind or "other operations"] += event.self_cpu_time_total
    total = sum(times.values())
    return {kind: value / total for kind, value in times.items()}


def warm_up() -> None:
    """Import what both need before memory is counted, by a forward of the smallest model of the kind."""
    small = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    small = {**MODEL, "config": {**MODEL["config"], **small}}
    module = get_model(small, torch_dtype=torch.float32)
    batch = {key: value[:1] for key, value in make_batch(0).items()}
    module(forward_type="default", forward_inputs=batch)["logprobs"].sum().backward()


def run_layout(layout: str, rounds: int) -> dict[str, Any]:
    """Times and peak memories of one layout."""
    world = int(layout[-1])
    result: dict[str, Any] = {"peak_bytes": {}}
    with tempfile.TemporaryDirectory() as folder:
        for which in ("engine", "bare"):
            for alone in (False, True):
                Path(folder, f"{layout}.store").unlink(missing_ok=True)
                mp.spawn(run_rank, args=(layout, (rounds + 1) // 2, folder, which, alone), nprocs=world)
            peaks = [int(Path(folder, f"{which}-{rank}.json").read_text()) for rank in range(world)]
            result["peak_bytes"][which] = max(peaks)
            found = json.loads(Path(folder, f"{which}-first.json").read_text())
            for key in ("seconds", "processor_seconds"):
                kept = result.setdefault(key, {"engine": [], "bare": []})
                for name, values in found[key].items():
                    kept[name] += values
            result["bounds"] = found["bounds"]
    return result


def run_rank(rank: int, layout: str, rounds: int, folder: str, which: str, alone: bool) -> None:
    """Entry of every process: time both steps, ``which`` built first, or find the peak memory of ``which`` alone."""
    backend, world = layout[:-2], int(layout[-1])
    torch.set_num_threads(1)
    if world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = f"file://{folder}/{layout}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    load_plugins()
    if alone:
        warm_up()
        MODEL["config"] |= MEMORY_SHAPE
        Path(folder, f"{which}-{rank}.json").write_text(str(peak_memory(which, backend, world, rank)))
    else:
        result = measure(backend, world, rank, rounds, which)
        if rank == 0:
            Path(folder, f"{which}-first.json").write_text(json.dumps(result))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def main() -> int:
    """Run the layouts one after the other and judge the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="timed steps of each kind (default 30)")
    parser.add_argument("--limit", type=float, default=0.05, help="how much slower the engine may be (default 0.05)")
    parser.add_argument("--only", nargs="*", choices=LAYOUTS, default=LAYOUTS, help="layouts to run")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    load_plugins()
    for name, value in get_platform().worker_env_vars().items():
        os.environ.setdefault(name, value)
    figures: dict[str, Any] = {}
    print(
        f"{'layout':8} {'engine s':>9} {'bare s':>8} {'ratio':>6} {'cpu':>6} {'peak MB':>8} {'bare MB':>8} {'ratio':>6}"
        "  what the engine's step is made of"
    )
    for layout in arguments.only:
        result = run_layout(layout, arguments.rounds)
        engine, bare = (statistics.median(result["seconds"][name]) for name in ("engine", "bare"))
        busy = [statistics.median(result["processor_seconds"][name]) for name in ("engine", "bare")]
        peak = result["peak_bytes"]
        figures[layout] = {"engine_s": engine, "bare_s": bare, "ratio": engine / bare, "cpu_ratio": busy[0] / busy[1]}
        figures[layout] |= {"memory_ratio": peak["engine"] / peak["bare"], **result}
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in result["bounds"].items())
        print(
            f"{layout:8} {engine:9.3f} {bare:8.3f} {engine / bare:6.3f} {busy[0] / busy[1]:6.3f} "
            f"{peak['engine'] / 1e6:8.0f} {peak['bare'] / 1e6:8.0f} {peak['engine'] / peak['bare']:6.3f}  {shares}",
            flush=True,
        )
        if bare < 0.2:
            print(f"         the bare step takes {bare:.3f} s, less than the 0.2 s the limit is meant for")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    limit = 1 + arguments.limit
    over = [layout for layout, figure in figures.items() if max(figure["ratio"], figure["memory_ratio"]) > limit]
    print(f"more than {arguments.limit:.0%} slower or larger: {', '.join(over)}" if over else "within the limit")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
