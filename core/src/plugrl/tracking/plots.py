"""The curves of a run as one picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from plugrl.errors import DataError, MissingDependency
from plugrl.tracking.run_directory import RunDirectory
from plugrl.tracking.series import Panel, make_panels

_COLORS = ("#2f6fdb", "#d9622b", "#2a9d6f", "#8a56c9")
_COLUMNS = 3
_INK, _FAINT = "#22272e", "#8b949e"


def write_curves(run_dir: str | os.PathLike[str] | RunDirectory) -> Path:
    """Draw the metrics of a run into `curves.png` and return its path.

    Raises DataError when there are no metrics and MissingDependency without matplotlib.
    """
    run = run_dir if isinstance(run_dir, RunDirectory) else RunDirectory(run_dir)
    panels = make_panels(run.read_metrics())
    if not panels:
        raise DataError(f"{run.metrics} holds no metrics to draw.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(f"Curves need matplotlib ({error}). Run `pip install matplotlib`.") from error
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure: Any = Figure(figsize=(4.6 * columns, 2.9 * rows), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.14)  # inches
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    run.path.mkdir(parents=True, exist_ok=True)
    temporary = run.curves.with_suffix(".tmp.png")
    figure.savefig(temporary)
    temporary.replace(run.curves)
    return run.curves


def _draw(axis: Any, panel: Panel) -> None:
    """Draw one panel: the raw line faint, the smoothed one over it."""
    for line, color in zip(panel.lines, _COLORS * 3, strict=False):
        few = len(line.points) <= 15
        if line.smooth != line.points:
            axis.plot(*zip(*line.points, strict=True), color=color, alpha=0.25, linewidth=1)
        axis.plot(
            *zip(*line.smooth, strict=True),
            color=color,
            linewidth=1.9,
            marker="o" if few else None,
            markersize=4,
            label=line.label,
        )
    axis.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axis.set_xlabel("step", fontsize=9, color=_FAINT)
    axis.tick_params(labelsize=9, colors=_FAINT, length=0)
    axis.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#d0d7de")
    axis.margins(x=0.02)
    _scale(axis, panel)
    if len(panel.lines) > 1:
        axis.legend(frameon=False, fontsize=8, labelcolor=_INK)


def _scale(axis: Any, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if panel.percent:
        values = [value for line in panel.lines for _, value in line.points]
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if max(values) > 0.2:
            axis.set_ylim(0, max(1.0, *values) * 1.02)
