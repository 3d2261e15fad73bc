"""The frame that all pages share: title, style sheet, tiles. A page needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from plugrl.tracking.summary import Tile


def render_page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Return a whole page; title and subtitle are texts, sections are HTML, of which empty ones are left out."""
    return Template(_template("report.html")).substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        style=_template("report.css"),
        body="\n".join(section for section in sections if section),
    )


def render_tiles(found: Sequence[Tile]) -> str:
    """Return a row of tiles: a label, a figure with its unit, and a note each."""
    parts = [
        f'<div class="tile"><div class="label">{escape(tile.label)}</div>'
        f'<div class="value"><span class="{tile.tone}">{escape(tile.value)}</span> '
        f"<small>{escape(tile.unit)}</small></div>"
        f'<div class="note">{escape(tile.note) or "&nbsp;"}</div></div>'
        for tile in found
    ]
    return f'<div class="tiles">{"".join(parts)}</div>' if parts else ""


def _template(name: str) -> str:
    return resources.files("plugrl.tracking").joinpath("templates", name).read_text(encoding="utf-8")
