"""Videos of evaluations in the report: of the first and of the last one, within the page itself."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path

VIDEOS = "videos"
"""The folder of a run's videos: `step000010_slice0_scene000_seed0.mp4`."""

_NAME = re.compile(r"step(\d+)_.*\.mp4")
_SEED = re.compile(r".*_seed(\d+)")
_EACH = 4
"""Videos of an evaluation that are shown."""

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
        f'<div class="card"><h3>step {step}</h3><div class="films">'
        f"{''.join(_video(path) for path in steps[step][:_EACH])}</div></div>"
        for step in shown
    ]
    return f'<h2>Videos</h2><div class="evaluations">{"".join(parts)}</div>'


def _video(path: Path) -> str:
    """Return a film that plays by itself, over and over, with the seed of its episode: the same at every evaluation."""
    name, seed = escape(path.name), _SEED.fullmatch(path.stem)
    if path.stat().st_size > _LARGEST:
        return f'<p><a href="{VIDEOS}/{name}">{name}</a></p>'
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    caption = f"<figcaption>seed {seed[1]}</figcaption>" if seed else ""
    source = f"data:video/mp4;base64,{data}"
    return (
        f'<figure><video controls autoplay loop muted playsinline title="{name}" src="{source}">{name}</video>'
        f"{caption}</figure>"
    )
