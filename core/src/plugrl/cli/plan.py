"""`plugrl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.cli import console

if TYPE_CHECKING:
    from plugrl.runtime.planner import Case, Plan, PlanArtefact


def plan(
    file: Annotated[Path, typer.Argument(metavar="CASE.json|PLAN.json", help="A case to solve, or a plan to show.")],
    output: Annotated[Path | None, typer.Option("--output", help="Write the plan to this file.")] = None,
    chart: Annotated[Path | None, typer.Option("--chart", help="Write the bars of the devices as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON instead of tables.")] = False,
) -> None:
    """Find the best placement, chunks and order for profiled components, and show time, memory and devices."""
    from plugrl.runtime.planner import LoopCase, artefact_from_dict, make_artefact, solve_loop, write_artefact
    from plugrl.runtime.planner.artefact import FORMAT, read_json

    data = read_json(file)
    if data.get("kind") == "loop":
        _show_loop(LoopCase.from_dict(data), solve_loop(data), as_json=as_json)
        return
    artefact = artefact_from_dict(data) if data.get("format") == FORMAT else make_artefact(data)
    _show(file, artefact, chart, as_json=as_json)
    if output is not None:
        write_artefact(artefact, output)
        console.err().print(f"Plan written to {output}.", markup=False, highlight=False, soft_wrap=True)


def _show(file: Path, artefact: PlanArtefact, chart: Path | None, *, as_json: bool) -> None:
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
