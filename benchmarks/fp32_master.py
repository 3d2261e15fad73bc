"""The step of AdamW with fp32 masters against torch's ``AdamW(foreach=True)``.

Parameters like those of a decoder of about 50 million; the two take turns in one process, so that noise of the machine
meets both alike. Prints the ratio of the medians, of elapsed time (which is judged) and of processor time (which other
programs disturb less), for fp32 parameters, for fp32 parameters with bf16 gradients, and for bf16 parameters with fp32
masters; the reference is always fp32. Writes JSON when asked; exits with 1 when a ratio is above ``--limit``.

    python benchmarks/fp32_master.py [--rounds 15] [--limit 1.5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from plugrl_engine_fsdp.fp32_master import FP32MasterAdamW

WIDTH, INNER, LAYERS, VOCABULARY = 512, 1408, 14, 8192
KINDS = {
    "fp32": (torch.float32, torch.float32),
    "fp32, bf16 gradients": (torch.float32, torch.bfloat16),
    "bf16, fp32 masters": (torch.bfloat16, torch.bfloat16),
}
"""Types of parameters and gradients."""


def parameters(dtype: torch.dtype, gradient: torch.dtype) -> list[torch.nn.Parameter]:
    """Return the parameters of a decoder with gradients."""
    layer = [(WIDTH, WIDTH)] * 4 + [(INNER, WIDTH)] * 2 + [(WIDTH, INNER), (WIDTH,), (WIDTH,)]
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in [(VOCABULARY, WIDTH), *layer * LAYERS, (WIDTH,)]:
        parameter = torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        parameter.grad_dtype = gradient
        parameter.grad = torch.randn(shape, generator=generator).to(gradient)
        made.append(parameter)
    return made


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return medians in seconds and their ratios, per kind of parameters."""
    native = torch.optim.AdamW(parameters(torch.float32, torch.float32), foreach=True)
    found = {}
    for kind, dtypes in KINDS.items():
        optimizers = {"ours": FP32MasterAdamW(parameters(*dtypes)), "torch": native}
        elapsed: dict[str, list[float]] = {name: [] for name in optimizers}
        processor: dict[str, list[float]] = {name: [] for name in optimizers}
        for turn in range(rounds + 1):
            for name, optimizer in optimizers.items():
                start = time.perf_counter(), time.process_time()
                optimizer.step()
                if turn:  # The first step makes the state.
                    elapsed[name].append(time.perf_counter() - start[0])
                    processor[name].append(time.process_time() - start[1])
        medians = {name: statistics.median(times) for name, times in elapsed.items()}
        cpu = {name: statistics.median(times) for name, times in processor.items()}
        found[kind] = {
            "ours_s": medians["ours"],
            "torch_s": medians["torch"],
            "ratio": medians["ours"] / medians["torch"],
            "processor_ratio": cpu["ours"] / cpu["torch"],
        }
    return found


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=1.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = measure(options.rounds)
    for kind, row in results.items():
        print(
            f"{kind:24s} {row['ours_s'] * 1e3:7.1f} ms, torch's fp32 {row['torch_s'] * 1e3:7.1f} ms: "
            f"ratio {row['ratio']:.2f}, of processor time {row['processor_ratio']:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return int(any(row["ratio"] > options.limit for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
