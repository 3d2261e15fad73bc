"""What measurements in environments say to a person: shares of success with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plugrl.envs.base import EpisodeRecord
from plugrl.runners.embodied_tasks import success_by_part
from plugrl.runners.validation import Share
from plugrl.tracking.headline import duration

if TYPE_CHECKING:
    from plugrl.runners.embodied_eval import EmbodiedValidation


def success_share(records: Sequence[EpisodeRecord], solved: Callable[[EpisodeRecord], bool]) -> Share | None:
    """Return the share of finished episodes that are solved; None where none finished."""
    finished = [record for record in records if not record.dropped]
    return Share(sum(map(solved, finished)), len(finished)) if finished else None


def solved_once(record: EpisodeRecord) -> bool:
    """Whether the task was solved at any step."""
    return record.success_once


def solved_at_end(record: EpisodeRecord) -> bool:
    """Whether the task was solved at the last step."""
    return record.success_at_end


def interval_metrics(records: Sequence[EpisodeRecord], prefix: str) -> dict[str, float]:
    """Return the ends of the 95 % intervals of success as ``<prefix>/success_once_low`` and the like."""
    found: dict[str, float] = {}
    for name, solved in (("success_once", solved_once), ("success_at_end", solved_at_end)):
        share = success_share(records, solved)
        if share is not None:
            found[f"{prefix}/{name}_low"], found[f"{prefix}/{name}_high"] = share.interval
    return found


def measured_rows(validation: EmbodiedValidation, label: str) -> list[tuple[str, str]]:
    """Return label and text of what a measurement found, for a table."""
    rows = []
    for name, solved in (("solved once", solved_once), ("solved at the end", solved_at_end)):
        share = success_share(validation.episodes, solved)
        if share is not None:
            rows.append((f"{name} {label}".strip(), str(share)))
    for part, share in success_by_part(validation.episodes).items():
        rows.append((f"  {part.replace('split.', 'split ')}", str(share)))
    finished = [record for record in validation.episodes if not record.dropped]
    if finished:
        returns = sum(record.return_ for record in finished) / len(finished)
        steps = sum(record.length for record in finished) / len(finished)
        rows.append((f"return, actions {label}".strip(), f"{returns:.3f}, {steps:.1f} of an episode"))
    seeds = [record.seed for record in validation.episodes]
    if seeds:
        rows.append((f"episodes {label}".strip(), f"{len(finished)}, seeds {min(seeds)} to {max(seeds)}"))
    dropped = len(validation.episodes) - len(finished)
    if dropped:
        rows.append((f"episodes lost {label}".strip(), f"{dropped}, with their simulator; they do not count"))
    return rows


def print_embodied_summary(
    validations: Sequence[EmbodiedValidation],
    *,
    seconds: float,
    steps: int,
    env_steps: int = 0,
    report: Path | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Print success before and after training (or the one measurement), time, speed, and where the report lies."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Result", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, validation in _ends(validations, steps):
        for name, text in measured_rows(validation, label):
            table.add_row(name, text)
    table.add_row("time", duration(seconds) + (f" for {steps} steps" if steps else ""))
    if env_steps and seconds:
        table.add_row("actions a second", f"{env_steps / seconds:,.0f}")
    if checkpoint is not None:
        table.add_row("last checkpoint", str(checkpoint))
    if report is not None:
        table.add_row("report", str(report))
    Console().print(table)


def _ends(validations: Sequence[EmbodiedValidation], steps: int) -> list[tuple[str, EmbodiedValidation]]:
    """Return the first and the last measurement with their labels; no label where nothing was trained."""
    if not validations:
        return []
    if not steps:
        return [("", validations[-1])]
    first, last = validations[0], validations[-1]
    before = "before training" if first.step == 0 else f"at step {first.step}"
    if len(validations) == 1:
        return [(before if first.step == 0 else "after training", first)]
    return [(before, first), ("after training", last)]
