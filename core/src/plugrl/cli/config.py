"""`plugrl config`: show, schema, check, placement, wrap-plan, flow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plugrl.cli import console
from plugrl.cli.training import ConfigFile, Overrides, PluginOptions, load

if TYPE_CHECKING:
    from plugrl.config.schema import RunConfig

TaskOption = Annotated[
    Literal["train", "sft", "eval"], typer.Option("--task", help="The command that the configuration is for.")
]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show, explain and check configurations.",
)


@app.command(context_settings={"ignore_unknown_options": True})
def show(
    config: ConfigFile, overrides: Overrides = None, plugin: PluginOptions = None, task: TaskOption = "train"
) -> None:
    """Print the whole configuration with every default, as YAML that loads again. Secrets are left out."""
    from plugrl.config.show import dump_yaml
    from plugrl.tracking.redact import redact

    console.reserve_output()
    loaded = load(config, overrides, plugin, task)
    console.answer(dump_yaml(redact(loaded.model_dump(mode="json"))), end="")


@app.command(context_settings={"ignore_unknown_options": True})
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    plugin: PluginOptions = None,
    task: TaskOption = "train",
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="Leave out data, model and devices: for a run on another machine.")
    ] = False,
) -> None:
    """Check a configuration as the run would, and start nothing: keys, names, options, data, tokenizer, devices."""
    from plugrl.targets import is_importable

    console.reserve_output()
    loaded = load(config, overrides, plugin, task)
    complete = not keys_only and is_importable("torch") and is_importable("ray")
    if complete:
        from plugrl.runners import inputs

        checks: dict[str, Callable[[RunConfig], object]] = {
            "train": inputs.check_rl_inputs,
            "sft": inputs.check_sft_inputs,
            "eval": inputs.check_eval_inputs,
        }
        if loaded.is_embodied and task != "sft":
            from plugrl.runners import embodied_main

            checks["train"] = embodied_main.check_embodied_inputs
            checks["eval"] = lambda config: embodied_main.check_embodied_parts(config, "eval")
        checks[task](loaded)
    console.answer(
        f"{config}: no problem found{'' if complete else ' in its keys; data, model and devices unchecked'}."
    )


@app.command(context_settings={"ignore_unknown_options": True})
def placement(
    config: ConfigFile,
    overrides: Overrides = None,
    plugin: PluginOptions = None,
    task: TaskOption = "train",
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Place on so many nodes, not on cluster.num_nodes.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", min=0, help="Devices of each node, not those of this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print on which node and device each process would run, with what environment, and start nothing.

    A cluster whose number of nodes is not given is joined and asked.
    """
    console.reserve_output()
    loaded = load(config, overrides, plugin, task)
    from plugrl.runners.placement_table import COLUMNS, placement_table

    table = placement_table(loaded, task, nodes, devices)
    if as_json:
        console.print_json(table.as_json())
    else:
        console.show_table(COLUMNS, (row.cells() for row in table.rows), table.title)


@app.command("wrap-plan", context_settings={"ignore_unknown_options": True})
def wrap_plan(
    config: ConfigFile,
    overrides: Overrides = None,
    plugin: PluginOptions = None,
    task: TaskOption = "train",
    component: Annotated[
        Literal["actor", "critic", "ref"], typer.Option("--component", help="Whose model is planned.")
    ] = "actor",
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="Plan for so many ranks, not for those that are placed.")
    ] = None,
) -> None:
    """Print into which units an engine would cut the model, in which precision each computes, and why."""
    console.reserve_output()
    loaded = load(config, overrides, plugin, task)
    from plugrl.engines.wrap_plan import COLUMNS
    from plugrl.runners.wrap_plan import wrap_plan as plan_of

    plan = plan_of(loaded, component, ranks)
    console.answer(console.plain_table(COLUMNS, plan.rows))
    for text in plan.notices:
        console.answer(f"note: {text}")
    for text in plan.warnings:
        console.warn(text)


@app.command(context_settings={"ignore_unknown_options": True})
def flow(config: ConfigFile, overrides: Overrides = None, plugin: PluginOptions = None) -> None:
    """Print how a training step would flow: what runs where, in which portions, and what overlaps with what."""
    console.reserve_output()
    loaded = load(config, overrides, plugin, "train")
    from plugrl.runners.flow_table import flow_table
    from plugrl.runtime.flow.explain import COLUMNS

    table = flow_table(loaded)
    console.answer(console.plain_table(COLUMNS, table.rows))
    for text in table.notes:
        console.answer(f"note: {text}")


@app.command(context_settings={"ignore_unknown_options": True})
def schema(
    section: Annotated[str | None, typer.Argument(help="Only this section, such as `actor.optim`.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Take model, rollout and plugins from this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON schema.")] = False,
) -> None:
    """List every key with its type, its default and what it means, those of the installed plugins included."""
    from plugrl.config.loader import load_schema
    from plugrl.config.show import schema_text

    console.reserve_output()
    found = load_schema(config)
    if as_json:
        console.print_json(found.model_json_schema())
    else:
        console.answer(schema_text(found, section), end="")
