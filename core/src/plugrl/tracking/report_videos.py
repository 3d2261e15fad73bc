"""Videos of evaluations in the report: of the first and of the last one, within the page itself."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path

VIDEOS = "videos"
"""The folder of a run's videos: `step000010_slice0_scene000_seed0.mp4`."""

_NAME = re.compile(r"step(\d+)_.*\.mp4")
_EACH = 4
_LARGEST = 4 * 2**20
"""Bytes of a video that is put into the page; a larger one is a link."""


def video_section(folder: Path) -> str:
    """Return the section of the page, empty without a video."""
    steps: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("step*.mp4")):
        match = _NAME.fullmatch(path.name)
        if match:
            steps.setdefault(int(match[1]), []).append(path)
    if not steps:
        return ""
    shown = dict.fromkeys((min(steps), max(steps)))
    parts = [
        f'<div class="card"><h3>step {step}</h3>{"".join(_video(path) for path in steps[step][:_EACH])}</div>'
        for step in shown
    ]
    return f"<h2>Videos</h2>{''.join(parts)}"


def _video(path: Path) -> str:
    name = escape(path.name)
    if path.stat().st_size > _LARGEST:
        return f'<p><a href="{VIDEOS}/{name}">{name}</a></p>'
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return (
        f'<video controls loop muted width="220" title="{name}" src="data:video/mp4;base64,{data}">{name}</video> '
    )
