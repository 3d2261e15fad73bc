"""`plugrl plan CONFIG`: measure a configuration, plan it, and train with the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plugrl.cli import console

if TYPE_CHECKING:
    from plugrl.config.schema import RunConfig
    from plugrl.runtime.planner import Plan, PlanArtefact

CONFIG_SUFFIXES = (".yaml", ".yml")
POINT_COLUMNS = ("component", "devices", "prompts", "time", "memory", "working memory", "loading", "unloading")


def plan_for(config: RunConfig, devices: int | None) -> PlanArtefact:
    """Measure a configuration and return its plan."""
    from plugrl.runners.planning.command import make_plan

    return make_plan(config, devices=devices, say=_progress)


def train_with(
    config: RunConfig, plan: PlanArtefact | None, devices: int | None, title: Path, output: Path | None
) -> None:
    """Train with a stored plan, or one that is made first; ``title`` is the file that it is shown under."""
    from plugrl.cli.plan import show_plan, write_plan
    from plugrl.runners.planning.command import train_planned

    def show(artefact: PlanArtefact) -> None:
        show_profile(artefact)
        show_plan(title, artefact, None, as_json=False)
        write_plan(artefact, output)

    train_planned(config, plan=plan, devices=devices, say=_progress, show=show)


def show_profile(artefact: PlanArtefact) -> None:
    """Print what was measured, and what of the best plan was not; nothing for a plan without a profile."""
    profile, best = artefact.profile, artefact.best
    if not profile:
        return
    console.heading("Measured")
    console.show_table(POINT_COLUMNS, _point_rows(artefact))
    for note in _notes(artefact, best):
        console.say(f"note: {note}")


def _point_rows(artefact: PlanArtefact) -> Iterator[tuple[str, ...]]:
    from plugrl.runtime.planner.describe import seconds

    for component in artefact.profile["components"]:
        loadings = {loading["devices"]: loading for loading in component["loadings"]}
        for point in component["points"]:
            loading = loadings[point["devices"]]
            yield (
                component["name"], str(point["devices"]), str(point["chunk"]), seconds(point["time_us"]),
                f"{loading['resident_mib']:,} MiB", f"{point['work_mib']:,} MiB",
                seconds(loading["onload_us"]), seconds(loading["offload_us"]),
            )  # fmt: skip


def _notes(artefact: PlanArtefact, best: Plan | None) -> Iterator[str]:
    from plugrl.runners.planning.planner import unmeasured
    from plugrl.runtime.planner.describe import seconds

    sync = artefact.profile["sync_us"]
    if sync:
        texts = ", ".join(f"{seconds(time_us)} from {count}" for count, time_us in sync.items())
        yield f"The actor's times hold the way of the weights to the rollout: {texts} devices."
    yield "Each component was measured alone: what several at once take from each other is not in the figures."
    yield from artefact.profile["notes"]
    if best is not None:
        yield from unmeasured(artefact.profile, best)


def _progress(line: str) -> None:
    console.err().print(line, markup=False, highlight=False, soft_wrap=True)
