"""Collocated, disaggregated and hybrid, end to end in two simulators: the same files, three placements.

Runs `plugrl train` on `examples/metaworld_ppo.yaml` (MuJoCo, bound by the processor) and `examples/tabletop_cnn.yaml`
(one array program with pictures for the policy), a few steps each, in three modes that differ by command line alone:

- collocated: environments, policy and training share all devices and take turns;
- disaggregated: each has devices of its own, and the scenes go round in two stages;
- hybrid: environments and policy have devices of their own, which training then takes together.

In all of them the scenes are cut into the same slices, so the numbers must be the same ones. Shown are actions a second
over a whole step, its first one left out; the share of the interaction that the policy and the simulator wait; and the
bubble ratio of the step's flow. Devices are slots of the host here: who has more of the machine's cores than its slots
stand for gains nothing, so this shows that the modes run and what they wait for, and says little of accelerators.

Exits with 1 when a run fails or the modes disagree in rewards, returns or losses.

    python benchmarks/embodied_modes.py [--steps 5] [--only metaworld tabletop] [--modes hybrid] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEADLINE_S = 900
MODES = {
    "collocated": ('{env: "0-1", rollout: "0-1", actor: "0-1"}', 1),
    "disaggregated": ('{env: 0, rollout: 1, actor: "2-3"}', 2),
    "hybrid": ('{env: 0, rollout: 1, actor: "0-1"}', 2),
}
"""Mode -> placement of the components, and stages of each environment worker."""

SIMULATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "metaworld": (
        "metaworld_ppo.yaml",
        ("env.train.total_num_envs=16", "env.train.max_steps_per_rollout_epoch=50", "actor.ppo_epochs=2"),
    ),
    "tabletop": ("tabletop_cnn.yaml", ("env.train.total_num_envs=64", "actor.ppo_epochs=2")),
}
"""Simulator -> example, and what makes its steps short."""

SAME = ("rollout/rewards", "rollout/returns_mean", "actor/loss")


@dataclass(frozen=True)
class Row:
    """A run: means over its steps but the first."""

    simulator: str
    mode: str
    actions_per_s: float
    step_s: float
    policy_waits: float
    simulator_waits: float
    bubble: float
    returns: tuple[float, ...]


def run(simulator: str, mode: str, steps: int, folder: Path) -> Row:
    """Train and read the metrics. Raises CalledProcessError when the run fails."""
    example, changes = SIMULATORS[simulator]
    placement, stages = MODES[mode]
    out = folder / f"{simulator}-{mode}"
    command = [
        sys.executable, "-m", "plugrl", "train", str(ROOT / "examples" / example), *changes, "env.eval=null",
        f"cluster.component_placement={placement}", f"rollout.pipeline_stage_num={stages}",
        f"trainer.total_training_steps={steps}", "trainer.test_freq=-1", "trainer.save_freq=-1",
        f"trainer.default_local_dir={out}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
        done.check_returncode()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    trained = [row for row in rows if row.get("perf/env_steps")]
    return row_of(simulator, mode, trained)


def row_of(simulator: str, mode: str, steps: Sequence[Mapping[str, float]]) -> Row:
    """Return the figures of a run."""
    warm = steps[1:] or steps

    def mean(values: Iterator[float]) -> float:
        found = list(values)
        return sum(found) / len(found)

    return Row(
        simulator=simulator,
        mode=mode,
        actions_per_s=mean(row["perf/env_steps_per_s"] for row in warm),
        step_s=mean(row["timing_s/step"] for row in warm),
        policy_waits=mean(row["timing_s/rollout/wait"] / row["timing_s/gen"] for row in warm),
        simulator_waits=mean(row["timing_s/env/wait"] / row["timing_s/gen"] for row in warm),
        bubble=mean(row["perf/bubble_ratio"] for row in warm),
        returns=tuple(row[name] for row in steps for name in SAME if name in row),
    )


def disagreements(rows: Sequence[Row]) -> list[str]:
    """Return which modes of a simulator did not earn the same, to a relative 1e-4 in the sums of floats."""
    found = []
    for simulator in dict.fromkeys(row.simulator for row in rows):
        first, *others = [row for row in rows if row.simulator == simulator]
        for other in others:
            pairs = zip(first.returns, other.returns, strict=True)
            if any(abs(one - two) > 1e-4 * max(1.0, abs(one)) for one, two in pairs):
                found.append(f"{simulator}: {first.mode} and {other.mode} have other numbers")
    return found


def main() -> int:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=SIMULATORS, default=list(SIMULATORS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(simulator, mode) for simulator in options.only for mode in options.modes]
        rows = [run(simulator, mode, options.steps, Path(folder)) for simulator, mode in pairs]
    print("| simulator | mode | actions/s | s a step | policy waits | simulator waits | bubble |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for row in rows:
        print(f"| {row.simulator} | {row.mode} | {row.actions_per_s:,.0f} | {row.step_s:.2f} | {row.policy_waits:.0%} "
              f"| {row.simulator_waits:.0%} | {row.bubble:.2f} |")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    problems = disagreements(rows)
    for text in problems:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
