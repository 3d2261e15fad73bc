"""The statistics, against values computed by hand."""

from __future__ import annotations

import math

import pytest

from plugrl.acceptance import curves


def test_the_rolling_mean_starts_where_a_window_is_full() -> None:
    assert curves.rolling_mean([1, 2, 3, 4, 8], 3) == [2, 3, 5]
    assert curves.rolling_mean([1, 2], 3) == []
    assert curves.rolling_mean([1, 2], 1) == [1, 2]


def test_the_slope_is_told_in_standard_errors() -> None:
    # Slope 0.8; residues -0.2, 0.4, -0.2, 0: 0.24 / 2 = 0.12 over a spread of 5 gives an error of 0.1549.
    assert curves.slope_t([1.0, 2.4, 2.6, 3.6]) == pytest.approx(0.8 / math.sqrt(0.24 / 2 / 5), rel=1e-9)
    assert curves.slope_t([3.6, 2.6, 2.4, 1.0]) == pytest.approx(-0.8 / math.sqrt(0.24 / 2 / 5), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.1, 0.2, 0.3, 0.4], math.inf), ([0.4, 0.3, 0.2, 0.1], -math.inf), ([0.3] * 7, 0.0), ([0.0] * 3, 0.0)],
)
def test_a_slope_without_noise(values: list[float], expected: float) -> None:
    assert curves.slope_t(values) == expected


def test_two_values_have_no_slope_to_judge() -> None:
    with pytest.raises(ValueError, match="at least 3 values to be judged, got 2"):
        curves.slope_t([1.0, 2.0])


def test_rise_and_fall() -> None:
    assert curves.rise([0, 2, 5, 4, 6], 2) == 4
    assert curves.rise([0, 2, 5, 4, 6], 2, 3) == 4
    assert curves.largest_fall([1, 3, 2, 5, 1, 4]) == 4
    assert curves.largest_fall([5, 4, 6, 7]) == 1
    assert curves.largest_fall([1, 2, 3]) == 0


def test_distance_and_correlation() -> None:
    assert curves.rms_difference([0, 0], [3, 4]) == pytest.approx(math.sqrt(12.5))
    assert curves.correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert curves.correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert curves.correlation([1, 1, 1], [3, 2, 1]) == 0
    with pytest.raises(ValueError, match="zip"):
        curves.rms_difference([1], [1, 2])


def test_several_curves_go_as_far_as_the_shortest() -> None:
    assert curves.mean_curve([[1, 2, 9], [3, 4]]) == [2, 3]
    assert curves.band([[1, 4, 9], [3, 2]]) == [(1, 3), (2, 4)]
