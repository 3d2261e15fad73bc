"""The page and the JSON: what they show, that texts are escaped, that nothing outside the page is needed."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from plugrl.acceptance.record import read_record
from plugrl.acceptance.reference import make_reference
from plugrl.acceptance.report import render
from plugrl.acceptance.rules import Thresholds
from plugrl.acceptance.run import Acceptance, assess, write_outcome

from .conftest import learning

EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture
def outcome(write_run: Callable[..., Path]) -> Acceptance:
    """A run that passes, against a reference of two seeds."""
    seeds = [read_record(write_run(learning(seed=s), f"seed{s}", trainer={"seed": s})) for s in (1, 2)]
    run = read_record(write_run(learning(seed=3), platform="newchip"))
    return assess(run, make_reference(seeds, "quickstart"), "quickstart.json", Thresholds())


def svg_of(page: str) -> ElementTree.Element:
    """The picture in the page."""
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def test_the_page_shows_verdict_both_curves_and_every_rule(outcome: Acceptance) -> None:
    page = render(outcome)
    assert "<title>Acceptance of newchip: pass</title>" in page
    assert page.count('class="raw') == 2 and page.count('class="smooth') == 2
    assert len(svg_of(page).findall(".//polygon")) == 1 and "range of its seeds" in page
    for rule in outcome.rules:
        assert f"<td>{rule.name}</td>" in page
    assert "cpu, seeds 1, 2, 100 steps" in page and outcome.reference.configuration_hash[:16] in page
    assert not re.search(r"(?:src|href)=", page)


def test_a_failed_run_shows_what_ended_it_and_what_failed(outcome: Acceptance) -> None:
    record = dataclasses.replace(outcome.record, rewards=(), last_step=0, error=f"WorkerDied: {EVIL}\nsecond line")
    failed = assess(record, outcome.reference, "quickstart.json", Thresholds())
    page = render(failed)
    assert not failed.passed and "Acceptance of newchip: fail" in page
    assert "<script>" not in page and "second line" in page
    assert page.count('class="raw') == 1 and "<polygon" not in page
    assert json.loads(json.dumps(failed.to_dict()))["rules"][3]["measured"] is None


def test_other_keys_are_shown_and_escaped(outcome: Acceptance) -> None:
    page = render(dataclasses.replace(outcome, differences=(f"data.source: {EVIL}",)))
    assert "Other configuration" in page and "<script>" not in page


def test_json_holds_what_the_page_shows(outcome: Acceptance, tmp_path: Path) -> None:
    page = write_outcome(outcome, tmp_path / "out")
    values = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert page == tmp_path / "out" / "acceptance.html" and page.read_text() == render(outcome)
    assert values["passed"] and values["platform"] == "newchip" and values["steps"] == {"planned": 100, "done": 100}
    assert {rule["name"] for rule in values["rules"]} == {rule.name for rule in outcome.rules}
    assert all({"measured", "threshold", "relation", "passed"} <= rule.keys() for rule in values["rules"])
    assert values["thresholds"]["max_distance"] == 0.1 and len(values["rewards"]) == 100
    assert values["reference"]["seeds"] == [1, 2] and values["reference"]["spread_of_seeds"] > 0
