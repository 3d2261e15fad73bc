"""`plugrl scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plugrl.cli import console

_GRACE_S = 30.0
"""Beyond the time of the scaling itself: the run looks at requests between two of its steps."""


def scale(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run that is at work.")],
    component: Annotated[str, typer.Argument(help="actor, rollout, ref or critic.")],
    devices: Annotated[str, typer.Argument(help="As in cluster.component_placement: 0-3, all, 0,2.")],
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that it may take.")] = 600.0,
) -> None:
    """Let a component of a run that is at work go on with other devices; training stops for the hand-over alone."""
    from plugrl.errors import UserError
    from plugrl.tracking.control import ControlFolder, ScaleRequest
    from plugrl.tracking.lock import is_at_work

    if timeout <= 0:
        raise UserError(f"--timeout {timeout:g}: give the seconds that it may take, more than 0.")
    if not is_at_work(run):
        raise UserError(f"No run is at work in {run}. Give the folder (trainer.default_local_dir) of one that is.")
    folder = ControlFolder(run)
    name = folder.ask(ScaleRequest(component=component, devices=devices, timeout_s=timeout))
    answer = folder.wait(name, timeout + _GRACE_S, console.say, lambda: is_at_work(run))
    if answer.state == "failed":
        raise UserError(f"{component} was not scaled: {answer.message}")
    console.say(answer.message)
