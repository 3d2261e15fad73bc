"""Success by task in the report: the first and the last measurement, one row for each task and split, one for all."""

from __future__ import annotations

from plugrl.tracking.report_tasks import task_table


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
