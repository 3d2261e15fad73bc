"""`plugrl train`, `plugrl demos`, `plugrl sft` and `plugrl eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from plugrl.config.embodied_checks import Task
    from plugrl.config.schema import RunConfig

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Keys to set otherwise, such as `actor.optim.lr=1e-5`.", show_default=False
    ),
]
SftArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [KEY=VALUE]...",
        help="The YAML file of the run, or `--config_path=PATH`, and keys to set otherwise.",
        show_default=False,
    ),
]
PluginOptions = Annotated[
    list[str] | None,
    typer.Option("-p", "--plugin", metavar="NAME|no:NAME", help="Load only this plugin, or all but it; repeatable."),
]


def with_overrides(command: Any) -> Any:
    """Mark a command as one that takes `key=value` and `--key=value`."""
    command.context_settings = {"ignore_unknown_options": True}
    return command


def load(config: Path, overrides: list[str] | None, plugins: list[str] | None, task: Task) -> RunConfig:
    """Load the configuration for a task."""
    from plugrl.config import load_config

    return load_config(config, overrides or (), task=task, plugin_options=plugins or ())


@with_overrides
def train(config: ConfigFile, overrides: Overrides = None, plugin: PluginOptions = None) -> None:
    """Train a policy by reinforcement learning.

    Goes on from the last checkpoint of the run if there is one; `trainer.resume=disable` starts anew.
    """
    from plugrl.errors import ConfigError
    from plugrl.runtime.launched import launched

    launch = launched()
    if launch is not None and launch.world_size > 1:
        raise ConfigError(
            f"plugrl train is to run once, but a launcher started {launch.world_size} of it. Ray starts its workers, "
            "as cluster.component_placement says; only plugrl sft runs under torchrun."
        )
    loaded = load(config, overrides, plugin, "train")
    from plugrl.runners.main import run_train

    run_train(loaded)


@with_overrides
def sft(arguments: SftArguments = None, plugin: PluginOptions = None) -> None:
    """Train a policy on reference responses or demonstrations.

    Under `torchrun -m plugrl sft CONFIG` the processes that it starts are the workers; otherwise Ray starts them.
    `--resume=true --config_path=CHECKPOINT` goes on from a checkpoint with the configuration that it holds.
    """
    from plugrl.runtime.launched import launched

    def read() -> RunConfig:
        from plugrl.runners.config_path import sft_sources

        config, overrides = sft_sources(arguments or ())
        return load(config, overrides, plugin, "sft")

    launch = launched()
    if launch is None:
        loaded = read()
        from plugrl.runners.main import run_sft

        run_sft(loaded)
        return
    from plugrl.runners.sft_launched import run_sft_launched

    run_sft_launched(launch, read)


@with_overrides
def demos(config: ConfigFile, overrides: Overrides = None, plugin: PluginOptions = None) -> None:
    """Collect demonstrations of an environment's expert, for `plugrl sft`.

    Successful episodes in the scenes of `env.demos` become the data set in `demos.path`, in LeRobot's format.
    """
    loaded = load(config, overrides, plugin, "demos")
    from plugrl.runners.demos import run_demos

    print(run_demos(loaded, lambda line: print(line, flush=True)))


@with_overrides
def evaluate(
    config: ConfigFile,
    overrides: Overrides = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="PATH", help="Evaluate this checkpoint, not `model.path`.")
    ] = None,
    plugin: PluginOptions = None,
) -> None:
    """Measure a policy on the held-out prompts."""
    loaded = load(config, overrides, plugin, "eval")
    from plugrl.runners.main import run_eval

    run_eval(loaded, None if checkpoint is None else str(checkpoint.expanduser().absolute()))
