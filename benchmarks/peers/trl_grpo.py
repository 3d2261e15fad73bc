"""GRPO steps by TRL's GRPOTrainer, timed. Run by ``benchmarks/grpo_step.py`` with a Python that has trl installed.

    python trl_grpo.py JOB.json

The job is a JSON object: model (a Hugging Face folder with its tokenizer), prompts (a JSONL file with "prompt"),
groups (prompts in a step), samples (of each prompt), new_tokens (of each sample, exactly), micro_batches (forward
passes that a process makes for one optimizer step), steps, lr, output. Writes to ``output`` the seconds of every step,
from the end of one to the end of the next, and how they divide. Under ``accelerate`` the processes share a step's
samples; the first one writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from reward import digit_share
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Notes when each optimizer step ended and what went into its phases."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.phases: list[dict[str, float]] = [{}]

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        """Close the books of one step."""
        self.ends.append(time.perf_counter())
        self.phases.append({})

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its time added to ``phase``."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                now = self.phases[-1]
                now[phase] = now.get(phase, 0.0) + time.perf_counter() - start

        return call


def rewards(new_tokens: int) -> Callable[..., list[float]]:
    """Return TRL's form of the reward, which also makes sure that every completion has the agreed length."""

    def digits(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths = {len(ids) for ids in completion_ids}
        if lengths != {new_tokens}:
            raise SystemExit(f"completions of {sorted(lengths)} tokens instead of {new_tokens}")
        return [digit_share(text) for text in completions]

    return digits


def settings(job: dict[str, Any], processes: int) -> GRPOConfig:
    """Return TRL's settings: everything off that costs time and is not GRPO."""
    micro_batch = job["groups"] * job["samples"] // processes // job["micro_batches"]
    return GRPOConfig(
        output_dir=str(Path(job["output"]).parent / "trl"),
        use_cpu=True,
        bf16=False,
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_steps=job["steps"],
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=job["micro_batches"],
        gradient_checkpointing=False,
        num_generations=job["samples"],
        max_completion_length=job["new_tokens"],
        # Forbids the end token until the last position, which TRL would otherwise cut at.
        generation_kwargs={"min_new_tokens": job["new_tokens"]},
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        num_iterations=1,
        epsilon=0.2,
        loss_type="dapo",
        scale_rewards="group",
        disable_dropout=True,
        shuffle_dataset=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
        **job.get("extra", {}),
    )


def main(path: str) -> None:
    """Train and write the times."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(job["threads"])
    rows = [json.loads(line)["prompt"] for line in Path(job["prompts"]).read_text(encoding="utf-8").splitlines()]
    clock = Clock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        reward_funcs=rewards(job["new_tokens"]),
        args=settings(job, processes),
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[clock],
    )
    for phase, name in (
        ("generate", "_generate_single_turn"),
        ("inputs", "_prepare_inputs"),
        ("training step", "training_step"),
    ):
        setattr(trainer, name, clock.timed(phase, getattr(trainer, name)))
    trainer.train()
    if int(os.environ.get("RANK", "0")) == 0:
        write(job, clock, processes)


def write(job: dict[str, Any], clock: Clock, processes: int) -> None:
    """Write seconds by step and by phase; the first step has no beginning, so it is left out."""
    seconds = [end - start for start, end in zip(clock.ends, clock.ends[1:], strict=False)]
    parts = [divide(phases, total) for phases, total in zip(clock.phases[1:], seconds, strict=False)]
    figures = {
        "seconds": seconds,
        "parts": parts,
        "processes": processes,
        "versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
    }
    Path(job["output"]).write_text(json.dumps(figures), encoding="utf-8")


def divide(phases: dict[str, float], total: float) -> dict[str, float]:
    """Turn nested times into parts that add up: generate, score, update (forward and backward), optimizer and rest."""
    return {
        "generate": phases["generate"],
        "score": phases["inputs"] - phases["generate"],
        "update": phases["training step"] - phases["inputs"],
        "optimizer and trainer": total - phases["training step"],
    }


if __name__ == "__main__":
    main(sys.argv[1])
