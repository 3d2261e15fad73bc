"""The reward manager, exact match, and rewards of one's own."""

from __future__ import annotations

import logging
import re
import signal
import time
from types import SimpleNamespace

import pytest

from plugrl.errors import UserError
from plugrl.rewards.exact_match import reward as exact_match
from plugrl.rewards.manager import RewardManager


def settings(name="gsm8k", function=None, steps=3, timeout_s=60.0, **options):
    return SimpleNamespace(
        name=name, function=function, reward_kwargs=options, unparsed_warning_steps=steps, timeout_s=timeout_s
    )


def test_scores_in_order_with_what_the_reward_says_besides():
    manager = RewardManager(settings(format_score=0.1))
    results = manager.score_batch(["#### 1", "#### 2", "no"], ["1", "1", "1"])
    assert [result.score for result in results] == [1.0, 0.1, 0.0]
    assert [result.info["acc"] for result in results] == [1.0, 0.0, 0.0]


def test_any_importable_function_and_a_plain_score_is_given_as_acc_too(tmp_path, monkeypatch):
    module = "def judge(text, truth, extra):\n    return 0.5 if text == truth else 0\n"
    (tmp_path / "own_reward.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = RewardManager(settings(name=None, function="own_reward:judge"))
    results = manager.score_batch(["a", "b"], ["a", "a"], [{}, None])
    assert [(result.score, result.info["acc"]) for result in results] == [(0.5, 0.5), (0.0, 0.0)]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="1 responses, 2 ground truths"):
        RewardManager(settings()).score_batch(["a"], ["1", "2"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (settings(name="gsm9k"), 'Did you mean "gsm8k"'),
        (settings(name=None, function="no_such_module_at_all:f"), "no_such_module_at_all"),
        (settings(name=None), "reward.name"),
        (settings(formatscore=1), "formatscore"),
    ],
)
def test_wrong_configuration_is_an_error_at_once(kind, message):
    with pytest.raises(ValueError, match=message):
        RewardManager(kind)


def failing(text, truth, extra):
    raise KeyError("answer")


@pytest.mark.parametrize(
    "raw", [float("nan"), float("inf"), "0.5", None, [1], {}, {"score": None}, {"score": 1.0, "acc": "yes"}]
)
def test_a_result_that_would_spoil_the_training_is_refused(raw, monkeypatch):
    manager = RewardManager(settings(name=None, function=f"{__name__}:failing"))
    monkeypatch.setattr(manager, "_function", lambda *_: raw)
    with pytest.raises(UserError, match="expected a finite number"):
        manager.score_batch(["a"], ["a"])


def test_a_failing_function_is_named_with_the_row_it_failed_on():
    manager = RewardManager(settings(name=None, function=f"{__name__}:failing"))
    with pytest.raises(UserError, match=r"failing' failed on the response 'b+\.\.\. with .* '7': KeyError: 'answer'$"):
        manager.score_batch(["b" * 999], ["7"])


def loops(text):
    while True:
        pass


def waits(text):
    time.sleep(60)


def backtracks(text):
    re.match(r"(a+)+$", "a" * 40 + "b")


def catches_everything(text):
    try:
        time.sleep(60)
    except BaseException:
        time.sleep(60)


@pytest.mark.parametrize("hang", [loops, waits, backtracks, catches_everything])
def test_a_reward_that_does_not_come_back_ends_with_its_row(hang, monkeypatch):
    manager = RewardManager(settings(name=None, function=f"{__name__}:failing", timeout_s=0.2))
    monkeypatch.setattr(manager, "_function", lambda text, *_: 1.0 if text == "quick" else hang(text))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"more than 0.2 s \(reward.timeout_s\) for 2 responses: 1 were .* 'slow'"):
        manager.score_batch(["quick", "slow"], ["1", "1"])
    assert time.monotonic() - began < 5


def test_a_timer_that_was_set_before_goes_on_after_a_batch():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    outer = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        RewardManager(settings()).score_batch(["#### 1"], ["1"])
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.3
        time.sleep(0.4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, before)
    assert len(rung) == 1


def test_numbers_of_other_libraries_become_plain(monkeypatch):
    numpy = pytest.importorskip("numpy")
    manager = RewardManager(settings(name=None, function=f"{__name__}:failing"))
    monkeypatch.setattr(manager, "_function", lambda *_: {"score": numpy.float32(0.5), "digits": numpy.int64(3)})
    (result,) = manager.score_batch(["a"], ["a"])
    assert result.score == 0.5 and type(result.info["digits"]) is int


def test_warns_once_when_nothing_parses_in_the_first_batches(caplog):
    manager = RewardManager(settings(method="strict", steps=3))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            manager.score_batch(["the answer is 7", "8"], ["7", "8"])
        assert not caplog.records
        for _ in range(4):
            manager.score_batch(["the answer is 7", "8"], ["7", "8"])
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert "method strict" in text
    assert "0 of 6 responses (0 %)" in text
    assert "the answer is 7" in text


def test_no_warning_once_an_answer_parsed(caplog):
    manager = RewardManager(settings(steps=3))
    with caplog.at_level(logging.WARNING):
        manager.score_batch(["none"], ["7"])
        manager.score_batch(["#### 1"], ["7"])
        for _ in range(5):
            manager.score_batch(["none"], ["7"])
    assert not caplog.records


def test_no_warning_when_switched_off(caplog):
    manager = RewardManager(settings(steps=0))
    with caplog.at_level(logging.WARNING):
        for _ in range(9):
            manager.score_batch(["none"], ["7"])
    assert not caplog.records


def test_exact_match():
    assert exact_match(" 46\n", "46")["score"] == 1.0
    assert exact_match("46", 46)["acc"] == 1.0
    assert exact_match("47", "46") == {"score": 0.0, "acc": 0.0, "parsed": 1.0, "pred": "47"}
    assert exact_match(" 46", "46", strip=False)["score"] == 0.0
    assert exact_match("Yes", "yes")["score"] == 0.0
    assert exact_match("Yes", "yes", ignore_case=True, score=2.0)["score"] == 2.0
