"""A full GRPO step of PlugRL against the same step of TRL's GRPOTrainer, on two processor cores.

A step is: sample, reward, advantages, update, and the new weights where the next samples are drawn. Both sides start
from one folder with the same weights and tokenizer (the quickstart's Qwen3 shape, about a million parameters, a token
per character) and take the same prompts in the same order: 8 tokens each, `groups` prompts with `samples` completions
of exactly `new_tokens` tokens. Common to both: fp32; temperature 1, no truncation of the distribution; one optimizer
step on the whole batch with fused AdamW, a constant learning rate and clipping at 1; advantages by group with standard
deviation, ratios clipped at 0.2, mean over tokens, entropy reported, no KL and so no reference model; the reward is a
few lines of Python. The old log-probabilities are those of the update itself: one optimizer step needs no others.

PlugRL runs as `plugrl train`: driver and Ray workers, two ranks that train and two that generate, on two devices, one
thread each; its engine is ddp unless `--strategy` says fsdp2, because TRL shards nothing here either; the times are
those of its own metrics.jsonl, its logging included, one forward pass a rank. End tokens are ignored.

TRL runs in its own environment (peers/trl_grpo.py) as one process with two threads or as two processes through
accelerate with one thread each, with one or several forward passes in an optimizer step: what is fastest of the
`--layouts`, found out before the measurement. No gradient checkpointing (its default is on), no dropout, no logging, no
saving, no progress bar, no workers for data. It forbids the end token, because it cuts completions there.

The two take turns, each time in new processes, of which the first steps are dropped. Samples a second are those of the
median step of all turns; minimum and maximum are over the medians of the turns. Exits with 1 below `--limit`.

    python benchmarks/grpo_step.py --trl-python /somewhere/bin/python [--turns 3] [--steps 12] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRL = "trl==1.16.0"
ADVICE = f"""The comparison needs a Python with {TRL} in an environment of its own:
    python -m venv /somewhere
    /somewhere/bin/pip install torch==2.13.0 {TRL}
Name it by --trl-python /somewhere/bin/python or by the variable PLUGRL_TRL_PYTHON."""
CORES = 2
LEARNING_RATE = 1e-4
ALPHABET = "0123456789+-="
MODEL = {
    "model_type": "causal_lm",
    "precision": "fp32",
    "seed": 1,
    "tokenizer": {"type": "characters", "alphabet": ALPHABET},
    "config": {
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class Case:
    """The size of a step: prompts in it, completions of each prompt, tokens of each completion."""

    name: str
    groups: int
    samples: int
    new_tokens: int

    @property
    def rows(self) -> int:
        """Completions in a step."""
        return self.groups * self.samples


@dataclass(frozen=True)
class Layout:
    """How TRL uses the cores: processes, and forward passes of each in one optimizer step."""

    processes: int
    micro_batches: int

    def __str__(self) -> str:
        return f"{self.processes} process{'es' if self.processes > 1 else ''}, {self.micro_batches} forward passes"


CASES = (Case("short", 32, 8, 16), Case("long", 8, 8, 64))
LAYOUTS = (Layout(1, 1), Layout(1, 4), Layout(2, 1), Layout(2, 4))


# --------------------------------------------------------------------- what both sides read
def prepare(folder: Path) -> None:
    """Write the model's folder and the prompts."""
    from plugrl.models import get_model, get_processor
    from plugrl.plugins import load_plugins

    load_plugins()
    policy = get_model(MODEL)
    policy.save_pretrained(folder / "model", dict(policy.model.named_parameters()))
    get_processor(MODEL).save_pretrained(folder / "model")
    numbers = random.Random(0)
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(512):
            left, right = (numbers.randint(100, 999) for _ in range(2))
            file.write(json.dumps({"prompt": f"{left}+{right}=", "answer": str(left + right)}) + "\n")


# --------------------------------------------------------------------- the two sides
def run_plugrl(case: Case, folder: Path, strategy: str, steps: int) -> dict[str, Any]:
    """Run `plugrl train` and return the seconds of each step, from one line of metrics to the next, and its parts."""
    run_dir = folder / "plugrl"
    config = {
        "model": {"model_type": "causal_lm", "path": str(folder / "model"), "precision": "fp32"},
        "data": {
            "train_files": str(folder / "prompts.jsonl"),
            "max_prompt_length": 8,
            "max_response_length": case.new_tokens,
            "train_batch_size": case.groups,
            "shuffle": False,
        },
        "cluster": {"component_placement": {"actor": "0-1", "rollout": "0-1"}},
        "actor": {
            "strategy": strategy,
            "ppo_mini_batch_size": case.groups,
            "clip_ratio_c": None,
            "optim": {"lr": LEARNING_RATE, "weight_decay": 0.0, "clip_grad": 1.0},
        },
        "rollout": {"name": "hf", "n": case.samples, "ignore_eos": True},
        "reward": {"function": "reward:digit_share"},
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {
            "total_training_steps": steps,
            "total_epochs": 1000,
            "val_before_train": False,
            "test_freq": -1,
            "save_freq": -1,
            "resume": "disable",
            "logger": ["jsonl"],
            "default_local_dir": str(run_dir),
        },
    }
    file = folder / "plugrl.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    metrics = run_dir / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    run([sys.executable, "-m", "plugrl", "train", str(file)], {"PLUGRL_CPU_DEVICES": str(CORES)})
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    lengths = {row[f"response_length/{key}"] for row in rows for key in ("min", "max")}
    if lengths != {case.new_tokens}:
        raise SystemExit(f"PlugRL sampled completions of {sorted(lengths)} tokens instead of {case.new_tokens}")
    seconds = [after["time"] - before["time"] for before, after in zip(rows, rows[1:], strict=False)]
    return {"seconds": seconds, "parts": [parts(row, total) for row, total in zip(rows[1:], seconds, strict=True)]}


def parts(row: dict[str, float], total: float) -> dict[str, float]:
    """Return the phases of a step and what lies between them."""
    prefix = "timing_s/"
    phases = {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}
    phases.pop("step", None)
    return {**phases, "rest": total - sum(phases.values())}


def run_trl(case: Case, folder: Path, python: str, layout: Layout, steps: int) -> dict[str, Any]:
    """Run TRL's side and return what it writes."""
    threads = CORES // layout.processes
    job = {
        "model": str(folder / "model"),
        "prompts": str(folder / "prompts.jsonl"),
        "groups": case.groups,
        "samples": case.samples,
        "new_tokens": case.new_tokens,
        "micro_batches": layout.micro_batches,
        "threads": threads,
        "steps": steps,
        "lr": LEARNING_RATE,
        "output": str(folder / "trl.json"),
    }
    file = folder / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    launcher = [python]
    if layout.processes > 1:
        launcher += ["-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--mixed_precision", "no"]
        launcher += ["--num_processes", str(layout.processes), "--num_cpu_threads_per_process", str(threads)]
    env = {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(threads)}
    run([*launcher, str(HERE / "peers" / "trl_grpo.py"), str(file)], env)
    figures: dict[str, Any] = json.loads(Path(job["output"]).read_text(encoding="utf-8"))
    return figures


def run(command: list[str], env: dict[str, str]) -> None:
    """Run a command quietly; what it said is shown when it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(HERE / "peers"), "TOKENIZERS_PARALLELISM": "false", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-4000:]}\nended with {done.returncode}")


# --------------------------------------------------------------------- measuring
def steady(figures: dict[str, Any], warmup: int) -> dict[str, Any]:
    """Drop the first steps."""
    return {**figures, "seconds": figures["seconds"][warmup:], "parts": figures["parts"][warmup:]}


def best_layout(case: Case, folder: Path, python: str, layouts: tuple[Layout, ...], steps: int, warmup: int) -> Layout:
    """Return TRL's fastest layout."""
    if len(layouts) == 1:
        return layouts[0]
    medians = {}
    for layout in layouts:
        figures = steady(run_trl(case, folder, python, layout, warmup + steps + 1), warmup)
        medians[layout] = statistics.median(figures["seconds"])
        print(f"  TRL, {layout}: {medians[layout]:.3f} s a step", flush=True)
    return min(medians, key=lambda layout: medians[layout])


def measure(case: Case, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Let the two sides take turns and compare them."""
    print(f"{case.name}: {case.groups} prompts x {case.samples} completions x {case.new_tokens} tokens", flush=True)
    steps, warmup = arguments.steps, arguments.warmup
    layout = best_layout(case, folder, arguments.trl_python, arguments.layouts, min(steps, 6), warmup)
    total = steps + warmup + 1  # The first step begins before the clock.
    turns: dict[str, list[dict[str, Any]]] = {"plugrl": [], "trl": []}
    for _ in range(arguments.turns):
        turns["plugrl"].append(steady(run_plugrl(case, folder, arguments.strategy, total), warmup))
        turns["trl"].append(steady(run_trl(case, folder, arguments.trl_python, layout, total), warmup))
    sides = {name: summary(case, runs) for name, runs in turns.items()}
    return {
        "case": asdict(case),
        "trl_layout": asdict(layout),
        "ratio": sides["plugrl"]["samples_per_s"] / sides["trl"]["samples_per_s"],
        **sides,
        "turns": turns,
    }


def summary(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median step over all turns, the range of the turns' medians, and the median time of each part."""
    medians = [statistics.median(run["seconds"]) for run in runs]
    pieces = [piece for run in runs for piece in run["parts"]]
    median = statistics.median([second for run in runs for second in run["seconds"]])
    return {
        "step_s": median,
        "samples_per_s": case.rows / median,
        "samples_per_s_min": case.rows / max(medians),
        "samples_per_s_max": case.rows / min(medians),
        "parts_s": {name: statistics.median(piece[name] for piece in pieces) for name in pieces[0]},
    }


def show(result: dict[str, Any]) -> None:
    """Print the rows of one case."""
    for name, side in (("PlugRL", result["plugrl"]), (f"TRL ({Layout(**result['trl_layout'])})", result["trl"])):
        rates = f"{side['samples_per_s']:8.1f} ({side['samples_per_s_min']:.1f} to {side['samples_per_s_max']:.1f})"
        pieces = ", ".join(f"{part} {1000 * seconds:.0f}" for part, seconds in side["parts_s"].items())
        print(f"  {name:36} {side['step_s']:7.3f} s {rates} samples/s;  ms: {pieces}")
    share = {name: seconds / result["plugrl"]["step_s"] for name, seconds in result["plugrl"]["parts_s"].items()}
    bounds = ", ".join(f"{name} {value:.0%}" for name, value in sorted(share.items(), key=lambda item: -item[1])[:3])
    print(f"  ratio {result['ratio']:.2f}; PlugRL's step is bound by {bounds}", flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", default=os.environ.get("PLUGRL_TRL_PYTHON"), help="a Python that has trl")
    parser.add_argument("--turns", type=int, default=3, help="runs of each side (default 3)")
    parser.add_argument("--steps", type=int, default=12, help="timed steps in a run (default 12)")
    parser.add_argument("--warmup", type=int, default=3, help="steps dropped at the start of a run (default 3)")
    parser.add_argument("--strategy", default="ddp", choices=("fsdp2", "ddp"), help="PlugRL's engine (default ddp)")
    parser.add_argument("--limit", type=float, default=1.5, help="how many times TRL's speed is asked (default 1.5)")
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES], help="cases to run")
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS, type=layout, help="PROCESSESxPASSES that TRL may use")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    arguments.layouts = tuple(arguments.layouts)
    if not arguments.trl_python:
        parser.exit(1, ADVICE + "\n")
    return arguments


def layout(text: str) -> Layout:
    """Read `2x1` as two processes with one forward pass each."""
    return Layout(*(int(number) for number in text.split("x")))


def main() -> int:
    """Run the cases and judge the ratios."""
    arguments = parse()
    # On a larger machine too, both sides get two cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for case in CASES:
            if arguments.only is None or case.name in arguments.only:
                results.append(measure(case, folder, arguments))
                show(results[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    slow = [result["case"]["name"] for result in results if result["ratio"] < arguments.limit]
    print(
        f"{', '.join(slow)}: less than {arguments.limit} times TRL" if slow else f"at least {arguments.limit} times TRL"
    )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
