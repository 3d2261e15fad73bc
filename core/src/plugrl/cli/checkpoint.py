"""`plugrl checkpoint`: look at checkpoints, check them, and turn shards into one file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.cli.console import answer, print_json, say, show_table, warn

if TYPE_CHECKING:
    from plugrl.checkpoints.description import Description
    from plugrl.checkpoints.safetensors_file import TensorSpec

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Inspect, verify and convert checkpoints.",
)

_PATH = Annotated[Path, typer.Argument(metavar="PATH", help="A run, a step, its model folder, or a file in it.")]
_KEYS = ("step", "optimizer_updates", "epoch", "offset", "samples_seen", "batch_size", "grad_accum_steps", "precision",
         "strategy", "dp_world_size")  # fmt: skip


@app.command()
def inspect(
    path: _PATH,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor of the weights.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a checkpoint holds. Reads headers only; `verify` checks the content."""
    from plugrl.checkpoints.description import describe

    found = describe(_newest(path))
    if as_json:
        print_json(_as_plain(found))
        return
    say(f"{found.path}")
    if not found.complete:
        warn("no manifest.json: this checkpoint is incomplete, or was not written by PlugRL")
    show_table(("setting", "value"), _facts(found))
    show_table(("file", "bytes"), [(name, f"{size:,}") for name, size in found.files])
    if tensors:
        rows = [(name, _dtype(spec), "x".join(map(str, spec.shape)) or "-") for name, spec in found.weights.items()]
        show_table(("tensor", "type", "shape"), rows)


@app.command()
def verify(path: _PATH) -> None:
    """Read every file of a checkpoint and compare it with the manifest; names those that are missing or altered."""
    from plugrl.checkpoints.store import verify as check

    folder = _newest(path)
    manifest = check(folder)
    size = sum(record.size for record in manifest.files.values())
    say(f"{folder} is whole: step {manifest.step}, {len(manifest.files)} files, {size:,} bytes")


@app.command()
def convert(
    path: _PATH,
    delete_dcp: Annotated[bool, typer.Option("--delete-dcp", help="Remove the shards after a check.")] = False,
    push_to_hub: Annotated[str, typer.Option(metavar="REPO", help="Upload the model folder to this repository.")] = "",
    private: Annotated[bool | None, typer.Option("--private/--public", help="Visibility of a new repository.")] = None,
) -> None:
    """Write `model.safetensors` (an adapter: `adapter_model.safetensors`) from the shards of a checkpoint.

    Needs one process, no accelerator, and memory for one tensor.
    """
    _convert(path, delete_dcp, push_to_hub, private)


@app.command("merge-adapter")
def merge_adapter(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the run.")],
    adapter: Annotated[Path, typer.Argument(metavar="PATH", help="A checkpoint with an adapter, or its folder.")],
    output: Annotated[Path, typer.Argument(metavar="DIR", help="The model folder to write; must not be there.")],
) -> None:
    """Write a whole model: the weights that CONFIG names with a trained adapter in them, in fp32."""
    from plugrl.checkpoints.convert import model_folder
    from plugrl.cli.training import load
    from plugrl.errors import CheckpointError
    from plugrl.models import get_model

    if output.exists():
        raise CheckpointError(f"{output} is there already; name a folder that is not.")
    _, folder = model_folder(_newest(adapter))
    model = load(config, None, None, "eval").model.with_adapter(str(folder)).without_adapter()
    policy = get_model(model, torch_dtype="fp32")
    published = {policy.published_name(name): tensor for name, tensor in policy.state_dict().items()}
    policy.save_pretrained(output, {name: tensor for name, tensor in published.items() if name is not None})
    answer(str(output))


@app.command("convert-dcp", hidden=True)
def convert_dcp(
    checkpoint_dir: Annotated[Path, typer.Option("--checkpoint_dir", metavar="DIR", help="A step, its model folder.")],
    delete_dcp: Annotated[str, typer.Option("--delete_dcp", metavar="BOOL", help="Remove the shards.")] = "false",
    push_to_hub: Annotated[str, typer.Option("--push_to_hub", metavar="REPO", help="Upload to this repository.")] = "",
    private: Annotated[str, typer.Option("--private", metavar="BOOL", help="Visibility of a new repository.")] = "",
) -> None:
    """Do what `convert` does, under the flags of `lerobot-convert-dcp`."""
    visibility = None if not private else _truth("--private", private)
    _convert(checkpoint_dir, _truth("--delete_dcp", delete_dcp), push_to_hub, visibility)


def convert_dcp_main() -> None:
    """Entry point of the command `plugrl-convert-dcp`."""
    from plugrl.cli.app import main

    main(["checkpoint", "convert-dcp", *sys.argv[1:]])


def _convert(path: Path, delete: bool, repository: str, private: bool | None) -> None:
    from plugrl.checkpoints.convert import convert as run
    from plugrl.checkpoints.publish import push_to_hub
    from plugrl.plugins import load_plugins

    load_plugins()
    written = run(_newest(path), delete_shards=delete)
    answer(str(written))
    if repository:
        answer(push_to_hub(written.parent, repository, private=private))


def _newest(path: Path) -> Path:
    """Return the step that a path means; of a folder of steps, the one last written."""
    from plugrl.checkpoints.locate import locate
    from plugrl.checkpoints.store import CheckpointStore, newest_step
    from plugrl.errors import CheckpointError, one_of

    if not path.exists():
        steps = CheckpointStore(path.parent).steps() if path.parent.is_dir() else []
        raise CheckpointError(f"There is nothing at {path}. Steps in {path.parent}: {one_of(map(str, steps))}.")
    return newest_step(locate(path)) or path


def _truth(flag: str, text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise typer.BadParameter(f"{flag} takes true or false, not {text!r}")
    return known[text.lower()]


def _facts(found: Description) -> list[tuple[str, str]]:
    rows = [(key, str(found.record[key])) for key in _KEYS if found.record.get(key) is not None]
    topology = found.record.get("parallelism")
    if topology:
        rows.append(("topology", ", ".join(f"{name}={size}" for name, size in topology.items() if size != 1) or "1"))
    rows.append(("weights", f"{_summary(found.weights)} in {', '.join(found.formats) or 'no file'}"))
    if found.optimizer:
        rows.append(("optimizer", f"{_summary(found.optimizer)}, state of {found.stateful} parameters"))
    for index, group in enumerate(found.groups):
        values = ", ".join(f"{key}={group[key]}" for key in ("lr", "betas", "eps", "weight_decay") if key in group)
        rows.append((f"group {group.get('name', index)}", f"{len(group['params'])} parameters, {values}"))
    rows.append(("size", f"{found.size:,} bytes in {len(found.files)} files"))
    return rows


def _summary(specs: Mapping[str, TensorSpec]) -> str:
    sizes: dict[str, int] = {}
    for spec in specs.values():
        count = spec.nbytes // spec.dtype.itemsize
        sizes[_dtype(spec)] = sizes.get(_dtype(spec), 0) + count
    return f"{len(specs)} tensors ({', '.join(f'{count:,} {kind}' for kind, count in sizes.items())})"


def _dtype(spec: TensorSpec) -> str:
    return str(spec.dtype).removeprefix("torch.")


def _as_plain(found: Description) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "complete": found.complete,
        "formats": found.formats,
        "record": found.record,
        "files": dict(found.files),
        "weights": {name: {"dtype": _dtype(spec), "shape": spec.shape} for name, spec in found.weights.items()},
        "optimizer": {name: {"dtype": _dtype(spec), "shape": spec.shape} for name, spec in found.optimizer.items()},
        "groups": found.groups,
    }
