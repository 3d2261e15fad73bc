"""The GSM8K reward: verl-compatible extraction and scores, and the recommended mode (reference 5.6, 11.6)."""

from __future__ import annotations

import pytest

from plugrl.data.gsm8k import label
from plugrl.errors import DataError
from plugrl.rewards.gsm8k import extract, reward, score
from plugrl.rewards.registry import get_reward

EXTRACTIONS = [
    ("The total is 42.\n#### 42", "42", "42"),
    ("#### 1,234", "1234", "1,234"),
    ("The change is -12.5 degrees #### -12.5 degrees", "-12.5", "-12.5"),
    ("####42", None, "42"),
    ("####\n42", None, "42"),
    ("####  42", None, "42"),
    ("#### $42", None, "42"),
    ("#### 42$", "42", "42"),
    ("The answer is #### 7.00.", "7.00.", "7.00."),
    ("#### 1 then #### 2", "2", "2"),
    ("#### 42" + "x" * 299, None, "2"),
    ("#### 42" + "x" * 293, "42", "42"),
    ("#### 42" + "x" * 294, None, "42"),
    ("I do not know.", None, "."),
    ("no idea", None, None),
    ("", None, None),
    ("maybe, or not", None, ","),
    ("#### 1e5", "1", "5"),
    ("#### 25%", "25", "25"),
    ("#### --5", None, "-5"),
    ("3/4 #### 3/4", "3", "4"),
]


@pytest.mark.parametrize(("text", "strict", "flexible"), EXTRACTIONS)
def test_compatible_extraction(text, strict, flexible):
    assert extract(text, "strict") == strict
    assert extract(text, "flexible") == flexible


def test_the_clip_is_configurable():
    text = "#### 42" + "x" * 400
    assert extract(text, "strict", clip=None) == "42"
    assert extract(text, "recommended", clip=300) is None
    assert extract(text, "strict", clip=0) is None


def test_unknown_method():
    with pytest.raises(ValueError, match='no method "loose". Known: flexible, recommended, strict'):
        extract("#### 42", "loose")
    with pytest.raises(ValueError, match="loose"):
        score("#### 42", "42", method="loose")


SCORES = [
    ("#### 42", "42", {}, 1),
    ("#### 41", "42", {"format_score": 0.1}, 0.1),
    ("42", "42", {"format_score": 0.1}, 0),
    ("the answer is 42", "42", {"method": "flexible"}, 1),
    ("#### 1,234", "1234", {}, 1),
    ("it is 1,234", "1234", {"method": "flexible"}, 0),
    ("#### 10", "10", {"score": 2.5}, 2.5),
    ("#### 5.0", "5", {}, 0),
]


@pytest.mark.parametrize(("text", "truth", "options", "expected"), SCORES)
def test_compatible_scores(text, truth, options, expected):
    assert score(text, truth, **{"method": "strict", **options}) == pytest.approx(expected)


RECOMMENDED = [
    ("#### 42.", "42", "correct"),
    ("#### $1,234", "1234", "correct"),
    ("####42", "42", "correct"),
    ("####\n42", "42", "correct"),
    ("#### 5.00", "5", "correct"),
    ("#### -$5", "-5", "correct"),
    ("#### $-5", "-5", "correct"),
    ("#### 1 then #### 2", "2", "correct"),
    ("#### 1234", "1,234", "correct"),
    ("#### .5", "0.50", "correct"),
    ("#### 42" + "x" * 400, "42", "correct"),
    ("#### 41", "42", "wrong"),
    ("it is 42", "42", "not parsed"),
    ("#### forty-two", "42", "not parsed"),
    ("", "42", "not parsed"),
]


@pytest.mark.parametrize(("text", "truth", "verdict"), RECOMMENDED)
def test_recommended_mode(text, truth, verdict):
    judged = reward(text, truth, format_score=0.1)
    assert judged["parsed"] == (verdict != "not parsed")
    assert judged["acc"] == (verdict == "correct")
    assert judged["score"] == {"correct": 1.0, "wrong": 0.1, "not parsed": 0.0}[verdict]


def test_it_is_registered():
    judged = get_reward("gsm8k", format_score=0.25)("#### 3", "4", {})
    assert judged["score"] == 0.25


LABELS = [
    ("9 - 2 = <<9-2=7>>7\nTotal 7,000\n#### 7,000", "7000"),
    ("so -3 * 4\n#### -12", "-12"),
    ("#### 3\n#### 4", "3"),
]


@pytest.mark.parametrize(("answer", "truth"), LABELS)
def test_labels(answer, truth):
    assert label(answer) == truth


def test_an_answer_without_marker_is_an_error():
    with pytest.raises(DataError, match="bad row without marker"):
        label("bad row without marker")
