"""Validation metrics by data source and number of samples."""

from __future__ import annotations

import pytest

from plugrl.tracking.validation import validation_metrics


def test_one_sample_a_prompt():
    infos = [{"reward": 0.1, "acc": 0.0, "pred": "3"}, {"reward": 1.0, "acc": 1.0, "pred": "4"}]
    got = validation_metrics(["gsm8k", "gsm8k"], ["a", "b"], infos)
    assert got == {"val-core/gsm8k/acc/mean@1": 0.5, "val-aux/gsm8k/reward/mean@1": pytest.approx(0.55)}


def test_several_samples_interleaved():
    infos = [{"reward": float(value), "pred": str(value)} for value in (0, 1, 1, 1, 0, 1, 0, 1)]
    got = validation_metrics(["t"] * 8, ["a", "b"] * 4, infos)
    # Prompt a has 0 1 0 0, prompt b 1 1 1 1.
    assert got["val-core/t/reward/mean@4"] == pytest.approx((0.25 + 1) / 2)
    assert got["val-core/t/reward/best@4/mean"] == pytest.approx((1 - 0.75**4 + 1) / 2)
    assert got["val-aux/t/reward/worst@2/mean"] == pytest.approx((0.25**2 + 1) / 2)
    assert got["val-aux/t/reward/best@2/std"] == pytest.approx((0.4375 * 0.5625) ** 0.5 / 2)
    # Of prompt a's four draws three or four are the 1 (13/256), or two are and one of them came first (27/256).
    assert got["val-core/t/reward/maj@4/mean"] == pytest.approx((40 / 256 + 1) / 2, abs=0.02)
    assert got["val-aux/t/reward/std@4"] == pytest.approx(0.1875**0.5 / 2)


def test_without_predictions_there_is_no_majority_and_texts_are_passed_over():
    got = validation_metrics(["t"] * 2, [0, 0], [{"reward": 1.0, "note": "x"}, {"reward": 0.0, "note": "y"}])
    assert not any("maj@" in name or "note" in name for name in got)
