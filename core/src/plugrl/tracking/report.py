"""One page about a run, with everything in it: no other file and no network is needed to read it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from plugrl.errors import DataError
from plugrl.tracking.files import write_atomic
from plugrl.tracking.page import render_page, render_tiles
from plugrl.tracking.report_tables import configuration, plugin_table, version_list
from plugrl.tracking.report_tasks import task_table
from plugrl.tracking.report_videos import VIDEOS, video_section
from plugrl.tracking.run_directory import RunDirectory
from plugrl.tracking.samples import Comparison, compare, reward_of
from plugrl.tracking.series import make_panels
from plugrl.tracking.summary import TimeShare, tiles, time_shares
from plugrl.tracking.svg import chart, format_value, legend

_END_OF_TIME = 4e9
"""Seconds since 1970 that are taken for a date."""


def write_report(run_dir: str | os.PathLike[str] | RunDirectory) -> Path:
    """Write `report.html` from the files of a run directory and return its path.

    Raises DataError when the directory holds no metrics.
    """
    run = run_dir if isinstance(run_dir, RunDirectory) else RunDirectory(run_dir)
    rows = list(run.read_metrics())
    if not rows:
        raise DataError(f"{run.path} is no folder of a run with metrics: {run.metrics.name} is missing or empty.")
    config_text = run.config.read_text(encoding="utf-8", errors="replace") if run.config.exists() else ""
    sections = [
        render_tiles(tiles(rows)),
        _charts(rows),
        task_table(rows),
        _samples(compare(run.read_samples())),
        video_section(run.path / VIDEOS),
        _timing(time_shares(rows)),
        _timeline(run),
        plugin_table(_read_json(run.plugins)),
        version_list(_read_json(run.versions)),
        configuration(config_text),
    ]
    write_atomic(run.report, render_page(_title(config_text, run), _subtitle(rows, run), sections))
    return run.report


def _timeline(run: RunDirectory) -> str:
    if not run.timeline.exists():
        return ""
    name = escape(run.timeline.name)
    return (
        f'<h2>Timeline</h2><div class="card"><p><a href="{name}" download>{name}</a> shows what every process did and '
        "when. Open it in ui.perfetto.dev or chrome://tracing, which read it where you are.</p></div>"
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Return what is in the file, nothing if it is missing or damaged: the rest of the page is worth having."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _title(config_text: str, run: RunDirectory) -> str:
    names = {}
    for line in config_text.splitlines():
        key, _, value = line.strip().partition(": ")
        if key in ("project_name", "experiment_name"):
            names[key] = value.strip("'\"")
    parts = [names.get("project_name", ""), names.get("experiment_name", "")]
    return " / ".join(part for part in parts if part) or run.path.name


def _subtitle(rows: Sequence[dict[str, Any]], run: RunDirectory) -> str:
    times = [float(row["time"]) for row in rows if 0 < row.get("time", 0) < _END_OF_TIME]
    when = datetime.fromtimestamp(min(times)).strftime("%Y-%m-%d %H:%M") if times else ""
    return " \u00b7 ".join(part for part in (when, str(run.path)) if part)


def _charts(rows: Sequence[dict[str, Any]]) -> str:
    parts = [
        f'<div class="card chart"><h3>{escape(panel.title)}</h3>{chart(panel)}{legend(panel)}</div>'
        for panel in make_panels(rows)
    ]
    return f'<h2>Curves</h2><div class="charts">{"".join(parts)}</div>' if parts else ""


def _samples(found: Sequence[Comparison]) -> str:
    if not found:
        return ""
    short = all(len(text) < 60 for item in found for text in _texts(item))
    grid = "samples short" if short else "samples"
    return f'<h2>Sample generations</h2><div class="{grid}">{"".join(_sample(item) for item in found)}</div>'


def _texts(item: Comparison) -> list[str]:
    return [item.prompt, *(str(row["response"]) for row in (item.before, item.after) if row is not None)]


def _sample(item: Comparison) -> str:
    texts = [_text("before", item.before)] if item.before is not None else []
    texts.append(_text("after" if texts else "", item.after))
    single = "" if len(texts) > 1 else " single"
    answer = f'<div class="answer">expected: {escape(item.answer)}</div>' if item.answer else ""
    return (
        f'<div class="card sample"><div class="prompt">{escape(item.prompt)}</div>{answer}'
        f'<div class="pair{single}">{"".join(texts)}</div></div>'
    )


def _text(label: str, row: dict[str, Any]) -> str:
    reward = reward_of(row)
    mark = "" if reward is None else f'<span class="{"good" if reward > 0 else "bad"}">reward {reward:.3g}</span>'
    phase = "" if row.get("phase", "rl") == "rl" else f"{row['phase']} "
    head = " \u00b7 ".join(part for part in (label, f"{phase}step {row.get('step', '?')}") if part)
    text = escape(str(row["response"])) or '<span class="none">(nothing)</span>'
    return f'<div class="text"><div class="head"><span>{escape(head)}</span>{mark}</div><pre>{text}</pre></div>'


def _timing(shares: Sequence[TimeShare]) -> str:
    if not shares:
        return ""
    bar = "".join(
        f'<i class="t{i % 8}" style="flex:{share.share:.5f}" title="{escape(share.name)}: {share.share:.1%}"></i>'
        for i, share in enumerate(shares)
    )
    parts = "".join(
        f'<div><b class="t{i % 8}"></b><span>{escape(share.name)}</span><span>{format_value(share.seconds)} s</span>'
        f"<em>{share.share:.1%}</em></div>"
        for i, share in enumerate(shares)
    )
    drawn = f'<div class="bar">{bar}</div><div class="parts">{parts}</div>'
    return f'<h2>Time of a step</h2><div class="card">{drawn}</div>'
