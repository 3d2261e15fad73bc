"""`plugrl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run.")]) -> None:
    """Write one page about a run: curves, configuration, plugins, sample generations."""
    from plugrl.errors import DataError, MissingDependency
    from plugrl.tracking import RunDirectory, write_curves, write_report

    run = RunDirectory(run_dir)
    if not run.metrics.exists():
        raise DataError(f"{run.path} is no folder of a run: it has no metrics.jsonl.")
    try:
        write_curves(run)
    except MissingDependency as error:  # the page draws its own curves
        typer.echo(f"No {run.curves.name}: {error}", err=True)
    typer.echo(str(write_report(run)))
