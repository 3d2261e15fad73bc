"""How long training stands still when a live trainer goes to another number of ranks: handed over, or restarted.

A causal language model is trained with AdamW under FSDP2, one step after another, on batches that depend on the number
of the step alone. Twice it goes on with another number of ranks (1 -> 2 -> 1):

- scaled: the new workers start while training goes on; the stall is from the end of the last step on the old ranks
  until the new ones are the trainer and the old ones have ended.
- restarted: the stall is that of saving a checkpoint, ending the workers, launching others and loading. Ray and this
  process stay; a restart of the whole job takes longer still.

Both take turns in one run; states are compared to the bit after each change, and the losses of the scaled trainer with
those of one that never changes.

    python benchmarks/elastic.py [--hidden 512] [--layers 4] [--json FILE]

Exits with 1 when a stall by scaling is not 10 times shorter, a state differs, or the curves differ by more than 1e-5.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from plugrl.config import load_config
from plugrl.config.schema import ClusterConfig
from plugrl.engines.base import BatchOptions
from plugrl.engines.state import RANDOM, add_checksums
from plugrl.runners.components import TRAINING_WORKER, engine_spec
from plugrl.runtime import RaySession, WorkerGroup
from plugrl.workers.groups import TrainingGroup
from plugrl.workers.objectives import PolicyObjective
from plugrl.workers.scaling import trainer_scaling

ROWS, WIDTH, RESPONSE, VOCABULARY = 8, 32, 16, 16
TIMEOUT_S = 300.0
SHORTER, CLOSE = 10.0, 1e-5


@dataclass(frozen=True)
class Row:
    """One change of the number of ranks, in seconds. steps: how many were done while new workers started."""

    change: str
    state_mib: float
    scaled_s: float
    restarted_s: float
    steps: int
    ratio: float


class Job:
    """A trainer and its data."""

    def __init__(self, session: RaySession, folder: Path, name: str, arguments: argparse.Namespace) -> None:
        self.session, self.name, self.folder = session, name, folder
        model = {
            "model_type": "causal_lm",
            "config": {
                "model_type": "qwen3", "hidden_size": arguments.hidden, "intermediate_size": 3 * arguments.hidden,
                "num_hidden_layers": arguments.layers, "num_attention_heads": 8, "num_key_value_heads": 8,
                "head_dim": arguments.hidden // 8, "max_position_embeddings": 64, "tie_word_embeddings": True,
            },
            "tokenizer": {"type": "characters", "alphabet": "0123456789+="},
            "precision": "fp32",
        }  # fmt: skip
        actor = {"strategy": "fsdp2", "ppo_mini_batch_size": ROWS, "optim": {"lr": 1e-4}}
        data = {"source": "arithmetic", "train_batch_size": ROWS, "max_response_length": RESPONSE}
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps({"model": model, "actor": actor, "data": data, "reward": {"name": "exact_match"}}))
        self.config = load_config(path)
        self.curve: list[float] = []
        self.trainer = TrainingGroup(self.launch(range(1)), TIMEOUT_S)

    def launch(self, devices: Sequence[int]) -> WorkerGroup:
        """Start a trainer as a run does."""
        spec = engine_spec(self.config, "actor", 1000, None, False)
        group = WorkerGroup(self.session, TRAINING_WORKER, name=self.name, devices=tuple(devices), args=(spec,))
        return group.wait_ready(TIMEOUT_S)

    def step(self) -> None:
        """Do the next step; its gradient norm is the point of the curve."""
        generator = torch.Generator().manual_seed(len(self.curve))
        batch = {
            "input_ids": torch.randint(0, VOCABULARY - 4, (ROWS, WIDTH), generator=generator),
            "attention_mask": torch.ones(ROWS, WIDTH, dtype=torch.long),
            "response_mask": torch.ones(ROWS, RESPONSE),
            "advantages": torch.randn(ROWS, RESPONSE, generator=generator),
        }
        objective = PolicyObjective(config=self.config.actor, max_response_length=RESPONSE)
        self.curve.append(self.trainer.train([batch], objective, BatchOptions(micro_batch_size=2))["grad_norm"])

    def state(self) -> tuple[dict[str, int], Any, float]:
        """Return sums over weights and moments, plain values, and MiB of it all."""
        offers = self.trainer.group.execute("offer_state").wait(TIMEOUT_S)
        self.trainer.group.execute("settle").wait(TIMEOUT_S)
        sums = {key: total for key, total in add_checksums(o.sums for o in offers).items() if RANDOM not in key}
        size = sum(b.count * o.specs[b.key].torch_dtype.itemsize for o in offers for b in o.blocks)
        return sums, offers[0].values, size / 2**20

    def scale(self, ranks: int) -> tuple[float, int]:
        """Go to other ranks while training goes on; returns the stall and the steps done meanwhile."""
        scaling = trainer_scaling(self.trainer, range(ranks), timeout=TIMEOUT_S)
        scaling.begin()
        before = len(self.curve)
        while not scaling.is_created:
            self.step()
        began = time.perf_counter()
        scaling.finish()
        return time.perf_counter() - began, len(self.curve) - before

    def restart(self, ranks: int) -> float:
        """Go to other ranks by a checkpoint; returns the stall."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            began = time.perf_counter()
            self.trainer.save(Path(folder), len(self.curve))
            self.trainer.close()
            self.trainer.group = self.launch(range(ranks))
            self.trainer.load(Path(folder))
            return time.perf_counter() - began


def main() -> None:
    """Measure, print a table and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    rows, problems = [], []
    with tempfile.TemporaryDirectory() as folder, RaySession(ClusterConfig(), platform="cpu") as session:
        jobs = {name: Job(session, Path(folder), name, arguments) for name in ("scaled", "restarted", "fixed")}
        scaled, restarted, fixed = jobs.values()
        ranks = 1
        for target in (2, 1):
            for job in (scaled, restarted):
                job.step()
            stall, steps = scaled.scale(target)
            while len(restarted.curve) < len(scaled.curve):
                restarted.step()
            before = restarted.state()
            slow = restarted.restart(target)
            if not scaled.state()[:2] == before[:2] == restarted.state()[:2]:
                # The two were trained alike, so a difference may also come from the sums of gradients over ranks.
                problems.append(f"{ranks} -> {target}: the states differ")
            rows.append(Row(f"{ranks} -> {target}", before[2], stall, slow, steps, slow / stall))
            ranks = target
        scaled.step()
        while len(fixed.curve) < len(scaled.curve):
            fixed.step()
        error = max(abs(a - b) / abs(b) for a, b in zip(scaled.curve, fixed.curve, strict=True))
        for job in jobs.values():
            job.trainer.close()
    print(f"{'ranks':<8}{'state MiB':>10}{'scaled s':>10}{'restarted s':>13}{'ratio':>8}{'steps meanwhile':>17}")
    for row in rows:
        print(f"{row.change:<8}{row.state_mib:>10.1f}{row.scaled_s:>10.3f}{row.restarted_s:>13.3f}"
              f"{row.ratio:>8.1f}{row.steps:>17}")  # fmt: skip
    print(f"largest relative difference to the fixed run over {len(scaled.curve)} steps: {error:.1e}")
    problems += [f"{row.change}: only {row.ratio:.1f} times shorter" for row in rows if row.ratio < SHORTER]
    problems += [f"the curves differ by {error:.1e}"] if error > CLOSE else []
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "difference": error}, indent=2))
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
