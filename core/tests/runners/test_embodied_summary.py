"""What is told of measurements in environments."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from plugrl.envs.episodes import EpisodeRecord, SceneLabel
from plugrl.runners.embodied_summary import interval_metrics, measured_rows, print_embodied_summary
from plugrl.runners.embodied_tasks import metric_names, part_metrics


def record(index, once, end, *, dropped=False, label=SceneLabel()):
    return EpisodeRecord(
        index=index, seed=50 + index, return_=2.0, length=10, success_once=once, success_at_end=end, dropped=dropped,
        label=label,
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


def labelled(task, once, split="", *, dropped=False):
    return record(0, once, once, dropped=dropped, label=SceneLabel(task, split))


def test_success_is_told_by_task_and_by_split():
    episodes = [
        labelled("pick up the cup", True, "seen"),
        labelled("pick up the cup", False, "unseen"),
        labelled("open the drawer", True, "seen"),
        labelled("open the drawer", False, "seen", dropped=True),
    ]
    found = part_metrics(episodes, "eval")
    assert {key: value for key, value in found.items() if "_low/" not in key and "_high/" not in key} == {
        "eval/success_once/open_the_drawer": 1.0,
        "eval/num_trajectories/open_the_drawer": 1.0,
        "eval/success_once/pick_up_the_cup": 0.5,
        "eval/num_trajectories/pick_up_the_cup": 2.0,
        "eval/success_once/split.seen": 1.0,
        "eval/num_trajectories/split.seen": 2.0,
        "eval/success_once/split.unseen": 0.0,
        "eval/num_trajectories/split.unseen": 1.0,
    }
    assert found["eval/success_once_low/split.seen"] == pytest.approx(0.3424, abs=1e-3)
    rows = dict(measured_rows(SimpleNamespace(step=0, episodes=episodes), ""))
    assert rows["  pick_up_the_cup"].startswith("50.0% (1/2")


def test_one_task_or_endless_instructions_are_not_told_apart():
    assert part_metrics([labelled("reach", True), labelled("reach", False)], "eval") == {}
    assert part_metrics([labelled(f"reach place {number}", True) for number in range(500)], "eval") == {}


def test_names_of_metrics_are_safe_and_never_alike():
    texts = ["Put A in B!", "put a in b", "", "x" * 80, "x" * 80 + "y", "push-v3"]
    names = metric_names(texts)
    assert len(set(names)) == len(texts) and names[-1] == "push-v3"
    assert all(re.fullmatch(r"[a-z0-9_-]{1,67}", name) for name in names)
    assert metric_names(texts[:1]) == ["put_a_in_b"] and metric_names(texts[3:4]) == names[3:4]
