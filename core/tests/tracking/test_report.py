"""Curves and the report: what they show, that texts are escaped, that nothing outside the page is needed."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from plugrl.config import RunConfig
from plugrl.errors import DataError
from plugrl.tracking import RunDirectory, Tracker, write_curves, write_report
from plugrl.tracking.samples import compare
from plugrl.tracking.series import Line, Panel, make_panels, points_of, smooth
from plugrl.tracking.summary import time_shares
from plugrl.tracking.svg import chart

EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return the directory of a finished run."""
    run = RunDirectory(tmp_path / "run")
    config = RunConfig(trainer={"experiment_name": EVIL})  # type: ignore[arg-type]
    ledger = {
        "plugins": [
            {
                "name": "x",
                "distribution": "plugrl-x",
                "version": "1",
                "state": "active",
                "provides": {"engine": ["a/b"]},
            },
            {"name": "y", "state": "failed", "reason": EVIL},
        ]
    }
    run.start(config, ledger)
    with Tracker([], run, config) as tracker:
        tracker.log({"val-core/sums/acc/mean@1": 0.4}, 0)
        tracker.log_samples([{"prompt": EVIL, "response": EVIL, "reward": 0.0, "ground_truth": "46"}], 0)
        for step in range(1, 41):
            metrics = {
                "critic/rewards/mean": step / 40,
                "timing_s/step": 2.0,
                "timing_s/gen": 1.5,
                "perf/throughput": 5.0,
            }
            tracker.log(metrics, step)
        tracker.log({"val-core/sums/acc/mean@1": 0.9}, 40)
        tracker.log_samples([{"prompt": EVIL, "response": "46", "reward": 1.0, "ground_truth": "46"}], 40)
    return run


def test_the_report_tells_the_run(run: RunDirectory) -> None:
    page = write_report(run).read_text()
    for text in (
        "90.0%",
        "from 40.0% at step 0",
        "Held-out accuracy",
        "plugrl-x",
        "engine: a/b",
        "generate",
        "75.0%",
        "before \u00b7 step 0",
        "after \u00b7 step 40",
        "reward 1",
        "total_epochs: 30",
        "pydantic",
    ):
        assert text in page


def test_what_runs_wrote_is_escaped(run: RunDirectory) -> None:
    page = write_report(run).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_page_needs_nothing_else(run: RunDirectory) -> None:
    page = write_report(run).read_text()
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://", page)
    assert "prefers-color-scheme: dark" in page


def test_the_page_is_well_formed(run: RunDirectory) -> None:
    page = write_report(run).read_text()
    body = page[page.index("<body>") : page.index("</html>")].replace("&nbsp;", " ")
    ElementTree.fromstring(body)


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        write_report(tmp_path)
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        write_curves(tmp_path)


def test_a_run_of_one_step_has_a_report(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with Tracker([], run, RunConfig()) as tracker:
        tracker.log({"critic/rewards/mean": 0.0, "odd": math.inf}, 1)
    assert "Reward" in write_report(run).read_text()


def test_curves_are_a_picture(run: RunDirectory) -> None:
    pytest.importorskip("matplotlib")
    path = write_curves(run)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    assert not list(run.path.glob("*.tmp.png"))


def test_panels_and_points(run: RunDirectory) -> None:
    rows = list(run.read_metrics())
    assert [panel.title for panel in make_panels(rows)] == ["Reward", "Held-out accuracy", "Throughput (tokens/s)"]
    assert points_of(rows, "val-core/sums/acc/mean@1") == [(0.0, 0.4), (40.0, 0.9)]


def test_smoothing_keeps_a_straight_line_and_calms_noise() -> None:
    straight = [(float(i), 2.0 * i) for i in range(100)]
    assert all(abs(a[1] - b[1]) < 1e-9 for a, b in zip(smooth(straight), straight, strict=True))
    noise = [(float(i), float((-1) ** i)) for i in range(100)]
    assert max(abs(value) for _, value in smooth(noise)) < 0.6
    assert smooth(noise[:5]) == noise[:5]


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [-5.0, 3.0], [1e-9, 2e-9], [1e12, 2e12], [0.0, 0.0, 0.0]])
def test_charts_stay_within_their_frame(values: list[float]) -> None:
    points = [(float(i), value) for i, value in enumerate(values)]
    svg = chart(Panel("t", [Line("l", points, points)]))
    numbers = [float(x) for pair in re.findall(r'points="([^"]*)"', svg) for x in re.split(r"[ ,]", pair)]
    assert all(-0.1 <= number <= 380.1 for number in numbers)
    ElementTree.fromstring(svg)


def test_a_line_of_zeros_stands_at_the_bottom_of_its_chart() -> None:
    points = [(1.0, 0.0), (2.0, 0.0)]
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", chart(Panel("t", [Line("l", points, points)])))
    assert "0.1" in labels and not any(label.startswith(("-", "\u2212")) for label in labels)


def test_time_shares_add_up_to_the_step() -> None:
    shares = time_shares([{"step": 1, "timing_s/step": 4.0, "timing_s/gen": 2.0, "timing_s/update_actor": 1.0}])
    assert [(share.name, share.seconds) for share in shares] == [
        ("generate", 2.0),
        ("update actor", 1.0),
        ("other", 1.0),
    ]
    assert abs(sum(share.share for share in shares) - 1) < 1e-9


def test_comparisons_put_what_changed_first_and_keep_what_got_worse() -> None:
    rows = []
    for i in range(10):
        rows.append({"prompt": f"p{i}", "response": "a", "reward": float(i == 9), "step": 0})
        rows.append({"prompt": f"p{i}", "response": "b", "reward": float(i < 5), "step": 8})
    found = compare(rows, limit=6)
    assert len(found) == 6
    assert [item.prompt for item in found[:5]] == ["p0", "p1", "p2", "p3", "p4"]
    assert found[5].prompt == "p9"


@pytest.mark.parametrize("name", ["config", "plugins", "versions", "samples"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"null", b'{"plugins": 3, "packages": [1], "command": 1}'])
def test_a_damaged_file_costs_its_own_part_of_the_report(run: RunDirectory, name: str, content: bytes) -> None:
    getattr(run, name).write_bytes(content)
    assert "90.0%" in write_report(run).read_text()


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "critic/rewards/mean": 1e999, "perf/throughput": NaN}',
        '{"step": 1, "critic/rewards/mean": 1' + "0" * 400 + "}",
        '{"step": 1, "timing_s/step": "slow", "time": [1], "phase": "rl"}',
        '{"step": 1, "time": -1e99}',
        '{"step": 1, "prompt": {"a": 1}, "response": null, "reward": "1"}',
        '{"step": null, "response": "x"}',
        '{"step": true, "phase": ["rl"], "response": "x"}',
        '{"critic/rewards/mean": 1}',
        '["step"]',
    ],
)
def test_a_damaged_line_is_left_out(run: RunDirectory, line: str) -> None:
    for path in (run.metrics, run.samples):
        path.write_text(line + "\n" + path.read_text() + line + "\n" + line[:-4])
    assert "90.0%" in write_report(run).read_text()
