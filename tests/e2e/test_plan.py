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
    """Work takes minutes, it says, and so taking turns on both devices is worth the seconds of loading."""
    seconds = {n: {m: 1_250_000 * int(m) // int(n) for m in ("4", "16")} for n in ("1", "2")}
    each = {"resident_mib": {"1": 6, "2": 6}, "onload_us": {"1": 10**6, "2": 10**6},
            "offload_us": {"1": 10**6, "2": 10**6}, "time_us": seconds,
            "work_mib": {n: {m: 0 for m in ("4", "16")} for n in ("1", "2")}}  # fmt: skip
    return {
        "devices": 2, "items": 16, "chunks": [4, 16], "capacity_mib": 10, "edges": [["rollout", "actor"]],
        "components": [{"name": "rollout", **each}, {"name": "actor", **each}],
    }  # fmt: skip


@pytest.mark.timeout(500)
def test_a_run_whose_plan_is_wrong_plans_again_and_moves_its_components(cli: Any) -> None:
    from plugrl.config import load_config
    from plugrl.runners.planning.planner import plain
    from plugrl.runtime.planner import make_artefact, write_artefact

    trainer = {"total_training_steps": 150, "save_freq": -1, "test_freq": -1, "val_before_train": False}
    path = cli.write("drifts", actor={"use_rollout_log_probs": True}, data={"train_batch_size": 16}, trainer=trainer)
    artefact = make_artefact(wrong_case(), plain(load_config(path)))
    assert artefact.result["best"] == "temporal" and artefact.best is not None
    assert artefact.best.swapped == ("rollout", "actor"), "both do not fit on a device"
    write_artefact(artefact, cli.folder / "wrong.json")
    command = cli.start("plan", str(path), "--apply", "--from", str(cli.folder / "wrong.json"))
    out, err = command.communicate(timeout=450)
    assert command.returncode == 0, out + err
    assert "the run goes over to rollout 1 | actor 1 (chunk 4)" in err and "was not taken over" not in err
    assert "actor: 2 -> 1 ranks before step" in out and "rollout: 2 -> 1 ranks before step" in out
    rows = cli.metrics("drifts")
    assert rows[5]["perf/plan_error"] < -0.5 and "perf/plan_error" not in rows[6], "no plan while components move"
    assert rows[150]["perf/plan_predicted_s"] < 0.5 * rows[5]["perf/plan_predicted_s"]
    kept = json.loads((cli.folder / "drifts" / "plan.json").read_text())
    assert kept["result"]["best"] == "spatial" and "Times were corrected before step 6" in kept["profile"]["notes"][-1]
    assert kept["configuration"] == artefact.configuration
