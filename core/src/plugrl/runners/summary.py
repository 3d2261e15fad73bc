"""The table that a run ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plugrl.runners.validation import Validation
from plugrl.tracking.headline import duration


def print_summary(
    validations: Sequence[Validation],
    *,
    seconds: float,
    steps: int,
    tokens: float,
    report: Path | None,
    checkpoint: Path | None = None,
) -> None:
    """Print accuracy before and after training, time, throughput, and where the report lies."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Result", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    ends = _ends(validations)
    for label, validation in ends:
        table.add_row(f"held-out accuracy {label}", str(validation.accuracy))
    shares = [validation.formatted for _, validation in ends]
    # Where every answer could be read all along, as in arithmetic, the rows would say nothing.
    for (label, _), share in zip(ends, shares, strict=True):
        if share is not None and any(other is not None and other.value < 1 for other in shares):
            table.add_row(f"answers in the format {label}", str(share))
    table.add_row("time", f"{duration(seconds)} for {steps} steps")
    if tokens:
        table.add_row("tokens a second", f"{tokens / seconds:,.0f}")
    if checkpoint is not None:
        table.add_row("last checkpoint", str(checkpoint))
    if report is not None:
        table.add_row("report", str(report))
    Console().print(table)


def _ends(validations: Sequence[Validation]) -> list[tuple[str, Validation]]:
    """Return the first and the last measurement with their labels."""
    if not validations:
        return []
    if len(validations) == 1:
        only = validations[0]
        return [("before training" if only.step == 0 else "after training", only)]
    first, last = validations[0], validations[-1]
    return [("before training" if first.step == 0 else f"at step {first.step}", first), ("after training", last)]
