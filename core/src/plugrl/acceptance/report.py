"""The page about an acceptance: the verdict, both curves, and every rule with what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

from plugrl.acceptance.curves import mean, rolling_mean
from plugrl.acceptance.record import REWARD
from plugrl.acceptance.rules import RuleResult
from plugrl.acceptance.run import Acceptance
from plugrl.tracking.page import render_page, render_tiles
from plugrl.tracking.report_tables import version_list
from plugrl.tracking.series import Band, Line, Panel, Points
from plugrl.tracking.summary import Tile
from plugrl.tracking.svg import WIDE, chart, format_value, legend

_SIGNS = {">=": "at least", "<=": "at most"}


def render(outcome: Acceptance) -> str:
    """Return the page."""
    title = f"Acceptance of {outcome.platform}: {_word(outcome.passed)}"
    subtitle = f"{outcome.reference.baseline}, against {outcome.reference.describe()} \u00b7 {outcome.record.path}"
    return render_page(
        title,
        subtitle,
        [
            render_tiles(_tiles(outcome)),
            _error(outcome.record.error),
            _curves(outcome),
            _rules(outcome.rules),
            _differences(outcome),
            version_list(outcome.record.versions),
            _reference(outcome),
        ],
    )


def measured_text(rule: RuleResult) -> str:
    """Return what a rule measured, in few digits; a dash where it could not."""
    return "-" if rule.measured is None else format_value(rule.measured)


def needed_text(rule: RuleResult) -> str:
    """Return the threshold of a rule in words."""
    return f"{_SIGNS[rule.relation]} {format_value(rule.threshold)}"


def _tiles(outcome: Acceptance) -> list[Tile]:
    kept, total = sum(rule.passed for rule in outcome.rules), len(outcome.rules)
    found = [
        Tile("Verdict", _word(outcome.passed), note=f"{kept} of {total} rules hold", tone=_tone(outcome.passed)),
        Tile("Steps", f"{outcome.record.last_step:,}", f"of {outcome.planned:,}", _seed(outcome)),
    ]
    rewards, window = outcome.record.rewards[: outcome.thresholds.horizon], outcome.thresholds.window
    reference = outcome.reference.rewards[: len(rewards)]
    if len(rewards) >= window and len(reference) >= window:
        last = max(window, len(reference) // 10)
        start, end = format_value(mean(rewards[:window])), format_value(mean(rewards[: len(reference)][-last:]))
        theirs = f"{format_value(mean(reference[:window]))} to {format_value(mean(reference[-last:]))}"
        found.append(Tile("Reward", f"{start} to {end}", "", f"reference: {theirs}"))
    distance = next((rule for rule in outcome.rules if rule.name == "distance"), None)
    if distance is not None and distance.measured is not None:
        spread = outcome.reference_spread
        note = "" if spread is None else f"seeds of the reference: {format_value(spread)}"
        found.append(Tile("Distance", measured_text(distance), "", note))
    return found


def _word(passed: bool) -> str:
    return "pass" if passed else "fail"


def _tone(passed: bool) -> Literal["good", "bad"]:
    return "good" if passed else "bad"


def _seed(outcome: Acceptance) -> str:
    return "" if outcome.record.seed is None else f"seed {outcome.record.seed}"


def _error(text: str) -> str:
    if not text:
        return ""
    return f'<h2>What ended the run</h2><div class="card"><pre>{escape(text)}</pre></div>'


def _curves(outcome: Acceptance) -> str:
    window, horizon = outcome.thresholds.window, outcome.thresholds.horizon
    lines = []
    if outcome.record.rewards:
        lines.append(_line(outcome.platform, outcome.record.rewards[:horizon], window))
    lines.append(_line(f"reference ({outcome.reference.platform})", outcome.reference.rewards[:horizon], window))
    bounds = outcome.reference.band[:horizon]
    low, high = (_points(rolling_mean([pair[side] for pair in bounds], window), window) for side in (0, 1))
    seeds = len(outcome.reference.seeds)
    band = Band("range of its seeds", low, high) if seeds > 1 and low and outcome.record.rewards else None
    panel = Panel(f"{REWARD} by step, and its mean over {window} steps", lines, band=band)
    drawn = f"<h3>{escape(panel.title)}</h3>{chart(panel, WIDE)}{legend(panel)}"
    return f'<h2>Curves</h2><div class="card chart">{drawn}</div>'


def _line(label: str, rewards: Sequence[float], window: int) -> Line:
    points = _points(rewards, 1)
    return Line(label, points, _points(rolling_mean(rewards, window), window) or points)


def _points(values: Sequence[float], first: int) -> Points:
    return [(float(first + index), value) for index, value in enumerate(values)]


def _rules(rules: Sequence[RuleResult]) -> str:
    rows = "".join(
        f'<tr><td><span class="{_tone(rule.passed)}">{_word(rule.passed)}</span></td>'
        f"<td>{escape(rule.name)}</td><td>{escape(rule.text)}{_note(rule)}</td>"
        f'<td class="number">{escape(measured_text(rule))}</td>'
        f'<td class="whole">{escape(needed_text(rule))}</td></tr>'
        for rule in rules
    )
    head = '<tr><th></th><th>Rule</th><th>What is measured</th><th class="number">Measured</th><th>Needed</th></tr>'
    return f'<h2>Rules</h2><div class="card scroll"><table>{head}{rows}</table></div>'


def _note(rule: RuleResult) -> str:
    return f'<br><span class="none">{escape(rule.note.splitlines()[0])}</span>' if rule.note else ""


def _differences(outcome: Acceptance) -> str:
    if not outcome.differences:
        return ""
    items = "\n".join(outcome.differences)
    head = "The run trained something else than the reference, in these keys:"
    return f'<h2>Other configuration</h2><div class="card"><p class="bad">{head}</p><pre>{escape(items)}</pre></div>'


def _reference(outcome: Acceptance) -> str:
    reference = outcome.reference
    pairs = {
        "file": outcome.reference_name,
        "made on": reference.describe(),
        "configuration": reference.configuration_hash[:16],
        **reference.versions,
    }
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in pairs.items())
    return f'<h2>Reference</h2><div class="card scroll"><table>{rows}</table></div>'
