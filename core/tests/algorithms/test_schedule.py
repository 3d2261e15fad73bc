"""Learning-rate schedules (reference 11.4); no torch needed."""

from __future__ import annotations

import pytest

from plugrl.algorithms import lr_factor, resolve_warmup_steps

CASES = [
    ("constant", 1e-6, 10, 100, 0.0, [0, 1, 5, 10, 50], [0.0, 1e-7, 5e-7, 1e-6, 1e-6]),
    ("cosine", 1e-6, 10, 110, 0.0, [0, 5, 10, 60, 110], [0.0, 5e-7, 1e-6, 5e-7, 0.0]),
    ("cosine", 2e-4, 4, 24, 0.25, [0, 2, 4, 14, 24], [0.0, 1e-4, 2e-4, 1.25e-4, 5e-5]),
]


@pytest.mark.parametrize(("kind", "lr", "warmup", "total", "low", "steps", "expected"), CASES)
def test_reference_values(kind, lr, warmup, total, low, steps, expected):
    got = [lr * lr_factor(step, total=total, warmup=warmup, kind=kind, min_lr_ratio=low) for step in steps]
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-18)


def test_after_the_end_the_lowest_rate_stays():
    assert lr_factor(500, total=24, warmup=4, kind="cosine", min_lr_ratio=0.25) == pytest.approx(0.25)
    assert lr_factor(0, total=24) == 1.0


def test_warmup_from_steps_or_ratio():
    assert resolve_warmup_steps(7, 0.5, 100) == 7
    assert resolve_warmup_steps(-1, 0.1, 100) == 10
    assert resolve_warmup_steps(0, 0.0, 100) == 0


def test_errors():
    with pytest.raises(ValueError, match="constant, cosine"):
        lr_factor(0, total=10, kind="linear")
    with pytest.raises(ValueError, match="no step -1"):
        lr_factor(-1, total=10)
