"""`plugrl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.cli import console
from plugrl.cli.training import Overrides, PluginOptions, load, with_overrides
from plugrl.errors import UserError

if TYPE_CHECKING:
    from plugrl.runtime.planner import Case, Plan, PlanArtefact


@with_overrides
def plan(
    file: Annotated[
        Path,
        typer.Argument(metavar="CONFIG.yaml|CASE.json|PLAN.json", help="What to plan, to solve or to show."),
    ],
    overrides: Overrides = None,
    apply: Annotated[bool, typer.Option("--apply", help="Train the configuration with its best plan.")] = False,
    stored: Annotated[
        Path | None, typer.Option("--from", metavar="PLAN.json", help="Measure nothing, take this plan of the run.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, help="Plan for so many devices, not those that the run uses.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the plan to this file.")] = None,
    chart: Annotated[Path | None, typer.Option("--chart", help="Write the bars of the devices as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON instead of tables.")] = False,
    plugin: PluginOptions = None,
) -> None:
    """Find the best placement, chunks and order, and show time, memory and devices.

    The components of a configuration are launched one at a time and measured; a case holds such figures already.
    """
    from plugrl.cli.planning import CONFIG_SUFFIXES, plan_for, show_profile, train_with

    if file.suffix not in CONFIG_SUFFIXES:
        _refuse_for_files(overrides, apply=apply, stored=stored, devices=devices)
        _solve(file, output, chart, as_json=as_json)
        return
    if apply and (as_json or chart):
        raise UserError("--apply: trains; print or draw the plan with a call of its own (--from PLAN.json).")
    if stored and devices:
        raise UserError("--devices: is for a plan that is made now; --from takes one that was made before.")
    config = load(file, overrides, plugin, "train")
    known = None if stored is None else _read_plan(stored)
    if apply:
        train_with(config, known, devices, file, output)
        return
    console.reserve_output()
    if known is None:
        known = plan_for(config, devices)
    if not as_json:
        show_profile(known)
    # Written before it is shown: a plan that is none is worth reading too, and showing it is an error.
    write_plan(known, output)
    show_plan(file, known, chart, as_json=as_json)


def write_plan(artefact: PlanArtefact, output: Path | None) -> None:
    """Write a plan where one is wanted, and say so."""
    from plugrl.runtime.planner import write_artefact

    if output is not None:
        write_artefact(artefact, output)
        console.err().print(f"Plan written to {output}.", markup=False, highlight=False, soft_wrap=True)


def _solve(file: Path, output: Path | None, chart: Path | None, *, as_json: bool) -> None:
    """Show a plan, or that of a case, or the arrangement of a loop."""
    from plugrl.runtime.planner import LoopCase, artefact_from_dict, make_artefact, solve_loop
    from plugrl.runtime.planner.artefact import FORMAT, read_json

    data = read_json(file)
    if data.get("kind") == "loop":
        _show_loop(LoopCase.from_dict(data), solve_loop(data), as_json=as_json)
        return
    artefact = artefact_from_dict(data) if data.get("format") == FORMAT else make_artefact(data)
    show_plan(file, artefact, chart, as_json=as_json)
    write_plan(artefact, output)


def _read_plan(file: Path) -> PlanArtefact:
    from plugrl.runtime.planner import artefact_from_dict
    from plugrl.runtime.planner.artefact import read_json

    return artefact_from_dict(read_json(file))


def _refuse_for_files(overrides: list[str] | None, **options: object) -> None:
    """Raise UserError for what only a configuration can be given."""
    given = [*(overrides or ()), *("--" + name.replace("stored", "from") for name, value in options.items() if value)]
    if given:
        raise UserError(f"{given[0]}: is for a configuration (CONFIG.yaml); a case or a plan is shown as it is.")


def show_plan(file: Path, artefact: PlanArtefact, chart: Path | None, *, as_json: bool) -> None:
    """Print tables and bars. Raises NoPlan, after the table of reasons, where there is no plan."""
    from plugrl.runtime.planner import collapse, require_plan, solve_case
    from plugrl.runtime.planner.chart import chart_svg
    from plugrl.runtime.planner.describe import MODE_COLUMNS, mode_rows
    from plugrl.tracking.files import write_atomic

    case = collapse(artefact.case).case
    if as_json:
        console.print_json(artefact.to_dict())
    else:
        console.say(
            f"{file}: {len(case.components)} components on {case.devices} devices of {case.capacity_mib:,} MiB, "
            f"{case.items:,} items a step"
        )
        console.show_table(MODE_COLUMNS, mode_rows(artefact.result))
    best = artefact.best
    if best is None:
        require_plan(case, solve_case(case))
        return
    if not as_json:
        _show_plan(case, best, artefact)
    if chart is not None:
        write_atomic(chart, chart_svg(case, best, title=f"Best plan of {file.name}"))


def _show_plan(case: Case, best: Plan, artefact: PlanArtefact) -> None:
    from rich.text import Text

    from plugrl.runtime.planner.chart import color_of, device_rows, glyph, letters_of
    from plugrl.runtime.planner.describe import PHASE_COLUMNS, phase_rows

    console.heading(f"Best: {best.mode}")
    console.show_table(PHASE_COLUMNS, phase_rows(case, best))
    for name, by_mode in artefact.loops.items():
        if best.mode in by_mode:
            console.say(f"{name}: {_arrangement_text(by_mode[best.mode])}")
    letters = letters_of([component.name for component in case.components])
    rows = device_rows(case, best, columns=72)
    width = max(len(f"device {row.label}") for row in rows)
    for row in rows:
        line = Text(f"{f'device {row.label}':<{width}}  ")
        for cell in row.cells:
            style = f"white on {color_of(case, cell[0])}" if cell[1] == "compute" else "dim"
            line.append(glyph(cell, letters), style=style)
        console.out().print(line, soft_wrap=True)
    legend = "  ".join(f"{letter} {name}" for name, letter in letters.items())
    loading = "  + loading  - unloading" if best.swapped else ""
    console.say(f"{'':<{width}}  {legend}{loading}  . idle")


def _show_loop(loop: Any, found: dict[str, Any], *, as_json: bool) -> None:
    """Print the best arrangement of a loop. Raises ConfigError where there is none."""
    from plugrl.errors import ConfigError

    if as_json:
        console.print_json(found)
    if "infeasible" in found:
        raise ConfigError(f"The loop has no arrangement: {found['infeasible']}.")
    if not as_json:
        console.say(f"{loop.items:,} environments, {loop.rounds} rounds: {_arrangement_text(found)}")


def _arrangement_text(found: dict[str, Any]) -> str:
    from plugrl.runtime.planner.describe import seconds

    if found["arrangement"] == "shared":
        return f"both on the same {found['devices']} devices, {seconds(found['time_us'])}"
    return (
        f"environment on {found['env_devices']}, policy on {found['policy_devices']} devices, "
        f"in {found['slices']} slices, {seconds(found['time_us'])}"
    )
