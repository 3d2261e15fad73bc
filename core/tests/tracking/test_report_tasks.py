"""Success by task in the report: the first and the last measurement, one row for each task and split, one for all."""

from __future__ import annotations

from plugrl.tracking.report_tasks import task_table
from plugrl.tracking.series import make_panels
from plugrl.tracking.summary import tiles, time_shares


def measured(step: int, **values: float) -> dict[str, float]:
    """Return the metrics of a measurement with shares of the parts that are named."""
    row = {"step": step, "eval/success_once": 0.5, "eval/success_once_low": 0.4, "eval/success_once_high": 0.6}
    for name, value in values.items():
        part = name.replace("__", ".")
        row |= {f"eval/success_once/{part}": value, f"eval/success_once_low/{part}": value / 2}
        row |= {f"eval/success_once_high/{part}": 1.0, f"eval/num_trajectories/{part}": 7.0}
    return row


def test_the_table_has_the_first_and_the_last_measurement_of_each_task() -> None:
    rows = [measured(0, push=0.1, split__unseen=0.2), {"step": 3}, measured(5, push=0.3), measured(10, push=0.9)]
    page = task_table(rows)
    order = [page.index(text) for text in ("step 0<", "step 10<", ">push<", ">split unseen<", ">all<")]
    assert order == sorted(order) and "step 5" not in page
    assert "<span>10.0%</span>" in page and "<em>45.0% to 100.0%</em>" in page and "<span>30.0%</span>" not in page


def test_runs_without_several_tasks_have_no_table() -> None:
    assert task_table([]) == "" and task_table([measured(0), {"step": 1, "env/success_once": 1.0}]) == ""


def test_a_run_in_environments_has_its_own_tiles_and_an_interval_around_held_out_success() -> None:
    rows = [
        measured(0),
        {"step": 1, "env/success_once": 0.1, "env/return": 1.0, "perf/env_steps_per_s": 500.0, "timing_s/step": 2.0,
         "timing_s/gen": 1.0, "timing_s/env/simulate": 0.5},
        {"step": 2, "env/success_once": 0.8, "env/return": 3.0},
        measured(2) | {"eval/success_once": 0.9, "eval/success_once_low": 0.85, "eval/success_once_high": 0.95},
    ]  # fmt: skip
    found = {tile.label: (tile.value, tile.note) for tile in tiles(rows)}
    assert found["Held-out success"] == ("90.0%", "from 50.0% at step 0; 85.0% to 95.0%")
    assert found["Return"] == ("3", "from 1") and "500" in found["Throughput"][0]
    assert {tile.label: tile.value for tile in tiles(rows[1:3])}["Success in training"] == "80.0%"
    panel = make_panels(rows)[0]
    assert [line.label for line in panel.lines] == ["training", "held out"]
    assert panel.band is not None and panel.band.high == [(0.0, 0.6), (2.0, 0.95)]
    assert time_shares(rows)[0].name == "act in environments"
