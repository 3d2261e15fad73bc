"""Finding a reward, binding its options, reading its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugrl.errors import ConfigError, DuplicateRegistration, NotRegistered, UserError
from plugrl.rewards import RewardResult, get_reward, register_reward
from plugrl.rewards.registry import REWARDS


def length(text: str, truth: Any, extra: Any, *, factor: float = 1.0) -> float:
    """A reward with one option."""
    return len(text) * factor


def test_by_name_with_options() -> None:
    with REWARDS.temporary():
        assert register_reward("length")(length) is length
        assert get_reward("Length") is length
        assert get_reward("length", factor=2.0)("abc", None, {}) == 6.0
        with pytest.raises(ConfigError, match=r"reward_kwargs\.factr.*factor"):
            get_reward("length", factr=2.0)
        with pytest.raises(ConfigError, match="truth"):
            get_reward("length", truth=1)
        with pytest.raises(DuplicateRegistration):
            register_reward("length")(lambda text, truth, extra: 0.0)


def test_any_importable_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward_module.py").write_text(
        "def mine(text, truth, extra, **options):\n    return options['bonus']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get_reward("my_reward_module:mine", bonus=3)("", "", {}) == 3
    for target in ("my_reward_module:yours", "no_such_module_here:f"):
        with pytest.raises(NotRegistered, match=target):
            get_reward(target)
    with pytest.raises(UserError, match="no function"):
        get_reward("sys:path")


def test_unknown_name_names_candidates() -> None:
    with pytest.raises(NotRegistered, match=r'"gsm8k".*exact_match'):
        get_reward("gsm8")


def test_results_are_numbers_or_mappings_with_a_score() -> None:
    assert RewardResult.of(1, "r") == RewardResult(1.0, {})
    assert RewardResult.of({"score": 0.5, "parsed": True}, "r") == RewardResult(0.5, {"parsed": True})
    for wrong in (None, "good", {"acc": 1.0}):
        with pytest.raises(UserError, match="'r' returned"):
            RewardResult.of(wrong, "r")  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["def (:", "raise RuntimeError('no licence')", "raise SystemExit(3)"])
def test_a_module_of_a_reward_that_raises_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "raising_reward.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotRegistered, match="raising_reward:f.*cannot be imported"):
        get_reward("raising_reward:f")
