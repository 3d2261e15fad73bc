"""What is told of measurements in environments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from plugrl.envs.episodes import EpisodeRecord
from plugrl.runners.embodied_summary import interval_metrics, measured_rows, print_embodied_summary


def record(index, once, end, *, dropped=False):
    return EpisodeRecord(
        index=index, seed=50 + index, return_=2.0, length=10, success_once=once, success_at_end=end, dropped=dropped
    )


EPISODES = [record(0, True, True), record(1, True, False), record(2, False, False), record(3, True, True, dropped=True)]


def test_lost_episodes_do_not_count_and_are_told():
    rows = dict(measured_rows(SimpleNamespace(step=0, episodes=EPISODES), ""))
    assert rows["solved once"].startswith("66.7% (2/3, 95 % interval 20.8% to 93.9%")
    assert rows["solved at the end"].startswith("33.3% (1/3")
    assert rows["episodes"] == "3, seeds 50 to 53" and rows["episodes lost"].startswith("1,")
    found = interval_metrics(EPISODES, "eval")
    assert found["eval/success_once_low"] == pytest.approx(0.2077, abs=1e-3)
    assert interval_metrics([EPISODES[3]], "eval") == {}


def test_the_table_tells_before_and_after(capsys):
    first = SimpleNamespace(step=0, episodes=EPISODES[2:3])
    last = SimpleNamespace(step=9, episodes=EPISODES[:1])
    print_embodied_summary([first, last], seconds=10.0, steps=9, env_steps=5000)
    text = capsys.readouterr().out
    assert "solved once before training" in text and "solved once after training" in text and "500" in text
    print_embodied_summary([last], seconds=1.0, steps=0)
    assert "training" not in capsys.readouterr().out
