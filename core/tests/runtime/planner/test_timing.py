"""Published rows of the timing model, and the formulas against the recurrence that they solve."""

from __future__ import annotations

import random

import pytest

from plugrl.runtime.planner import bubble_ratio, loop_time, pipeline_time


def test_the_rows_of_the_timing_model() -> None:
    assert (pipeline_time([4, 4], 8), bubble_ratio([4, 4], 8, [1, 1])) == (36, pytest.approx(1 / 9))
    assert pipeline_time([3, 6, 2], 5) == 35
    assert bubble_ratio([3, 6, 2], 5, [1, 2, 1]) == pytest.approx(0.392857, abs=1e-6)
    arcs = [(0, 1), (1, 2), (0, 3)]
    assert pipeline_time([4, 4, 4, 6], 3, arcs) == 22
    assert bubble_ratio([4, 4, 4, 6], 3, [1] * 4, arcs) == pytest.approx(0.386364, abs=1e-6)
    assert loop_time(4, 2, 2, 5) == 42
    assert loop_time(3, 3, 2, 4) == 27


@pytest.mark.parametrize(("stages", "chunks"), [(2, 3), (3, 7), (5, 4)])
def test_equal_stages_leave_the_bubble_of_the_closed_form(stages: int, chunks: int) -> None:
    assert bubble_ratio([7] * stages, chunks, [1] * stages) == pytest.approx((stages - 1) / (chunks + stages - 1))


def test_the_time_of_any_graph_is_that_of_the_recurrence_of_finish_times() -> None:
    draw = random.Random(11)
    for _ in range(200):
        count, chunks = draw.randint(1, 5), draw.randint(1, 6)
        times = [draw.randint(0, 9) for _ in range(count)]
        arcs = [(u, v) for v in range(count) for u in range(v) if draw.random() < 0.5]
        finish = [0] * count
        for _ in range(chunks):
            for s in range(count):
                finish[s] = max([finish[s], *(finish[u] for u, v in arcs if v == s)]) + times[s]
        assert pipeline_time(times, chunks, arcs) == max(finish), (times, chunks, arcs)


def test_a_cycle_or_nothing_is_refused() -> None:
    for times, chunks, arcs in (([1, 1], 2, [(0, 1), (1, 0)]), ([], 1, []), ([1], 0, None)):
        with pytest.raises(ValueError, match="cycle|at least one"):
            pipeline_time(times, chunks, arcs)
