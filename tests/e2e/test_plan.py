"""Real runs with a plan: made for them and compared with what they take, and one that is made again on the way."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRIALS = 2
LIMIT = 0.15
"""How far the median step may be from the prediction, as a share of it."""


@pytest.mark.timeout(1200)
def test_the_quickstart_takes_what_its_plan_predicts(cli: Any) -> None:
    for trial in range(TRIALS):
        name = f"planned-{trial}"
        folder = cli.folder / name
        command = cli.start(
            "plan", str(ROOT / "examples" / "quickstart.yaml"), "--apply", "trainer.total_training_steps=8",
            "sft.total_steps=150", f"trainer.default_local_dir={folder}",
        )  # fmt: skip
        out, err = command.communicate(timeout=580)
        assert command.returncode == 0, out + err
        assert "Best: " in out and "device 0" in out and "measuring 1/16: rollout on 1 device: starting" in err
        rows = [cli.metrics(name)[step] for step in range(2, 9)]
        taken, predicted = median(row["perf/plan_measured_s"] for row in rows), rows[0]["perf/plan_predicted_s"]
        assert taken == pytest.approx(predicted, rel=LIMIT), f"trial {trial}"
        bubble = median(row["perf/bubble_ratio"] for row in rows)
        assert bubble == pytest.approx(rows[0]["perf/plan_bubble_predicted"], abs=LIMIT), f"trial {trial}"
        plan = json.loads((folder / "plan.json").read_text())
        assert plan["result"]["best"] and len(plan["profile"]["components"]) == 2


def wrong_case() -> dict[str, Any]:
    """Sampling takes 20 times as long as training, it says; neither runs on three devices."""
    def component(name: str, prompt_us: int) -> dict[str, Any]:
        loading = {"1": 0, "2": 0}
        return {
            "name": name, "resident_mib": {"1": 1, "2": 1}, "onload_us": loading, "offload_us": loading,
            "time_us": {n: {m: prompt_us * int(m) // int(n) for m in ("4", "16")} for n in ("1", "2")},
            "work_mib": {n: {m: 0 for m in ("4", "16")} for n in ("1", "2")},
        }  # fmt: skip

    return {
        "devices": 3, "items": 16, "chunks": [4, 16], "capacity_mib": 9, "edges": [["rollout", "actor"]],
        "components": [component("rollout", 200_000), component("actor", 10_000)],
    }  # fmt: skip


@pytest.mark.timeout(400)
def test_a_run_whose_plan_is_wrong_plans_again_and_moves_its_components(cli: Any) -> None:
    from plugrl.config import load_config
    from plugrl.runners.planning.planner import plain
    from plugrl.runtime.planner import make_artefact, write_artefact

    trainer = {"total_training_steps": 250, "save_freq": -1, "test_freq": -1, "val_before_train": False}
    actor, data = {"use_rollout_log_probs": True}, {"train_batch_size": 16}
    path = cli.write("drifts", actor=actor, data=data, trainer=trainer)
    artefact = make_artefact(wrong_case(), plain(load_config(path)))
    assert artefact.best is not None and [stage.devices for stage in artefact.best.phases[0].stages] == [2, 1]
    write_artefact(artefact, cli.folder / "wrong.json")
    done = cli.run("plan", str(path), "--apply", "--from", str(cli.folder / "wrong.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Planned again: the run goes over to" in done.stderr and "was not taken over" not in done.stderr
    assert "ranks before step" in done.stdout, "no component moved"
    rows = cli.metrics("drifts")
    planned = [row for row in rows.values() if "perf/plan_predicted_s" in row]
    assert planned[0]["perf/plan_error"] < -0.15 and planned[0]["perf/plan_predicted_s"] > 1.6
    last = rows[250]
    assert last["perf/plan_predicted_s"] < 0.5 * planned[0]["perf/plan_predicted_s"]
    kept = json.loads((cli.folder / "drifts" / "plan.json").read_text())
    assert "Times were corrected before step" in kept["profile"]["notes"][-1]
    assert kept["configuration"] == artefact.configuration
