"""Which configuration a run is started from: a file of the user's, or the one that a checkpoint holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugrl.checkpoints import CheckpointStore
from plugrl.config.overrides import parse_override
from plugrl.errors import CheckpointError, ConfigError

PRETRAINED = "pretrained_model"
TRAIN_CONFIG = "train_config.json"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Source:
    """A configuration file; ``checkpoint`` is the step directory that holds it, None for a file of the user's."""

    config: Path
    checkpoint: Path | None = None


def sft_sources(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the configuration file and the overrides that the arguments of ``plugrl sft`` mean.

    A checkpoint's configuration is taken with ``resume=true``, which goes on in its folder, or with another
    ``output_dir``, which begins a new run; what the arguments set wins over what the checkpoint holds.

    Raises:
        ConfigError: no configuration, or two of them.
        CheckpointError: a path that holds no checkpoint.
    """
    files, overrides, resume = [], [], None
    rest = iter(arguments)
    for argument in rest:
        key, equals, value = argument.partition("=")
        names_file = key.lstrip("-").replace("-", "_") == "config_path"
        if names_file and (equals or key.startswith("--")):
            files += [value] if equals else [*itertools.islice(rest, 1)]
        elif not equals and key.startswith("-"):
            raise ConfigError(f"{argument}: give the value after a sign of equality, {argument}=VALUE.")
        elif not equals:
            files.append(argument)
        else:
            path, given = parse_override(argument)
            resume = given if path in (("resume",), ("trainer", "resume")) else resume
            overrides.append(argument)
    if len(files) != 1:
        raise ConfigError(
            "Name one configuration: plugrl sft CONFIG KEY=VALUE..., or --config_path=PATH, where PATH may also be a "
            f"checkpoint. Given: {', '.join(files) or 'none'}."
        )
    source = locate(files[0])
    if source.checkpoint is None:
        return source.config, overrides
    if resume is True:
        # Last: these say what `resume=true` means for this checkpoint. The run may have been moved since.
        overrides.append(f"trainer.resume={_quoted(source.checkpoint)}")
        root = source.checkpoint.parent
        if root.name == CHECKPOINTS:
            overrides.insert(0, f"trainer.default_local_dir={_quoted(root.parent)}")
    elif resume is None:
        overrides.append("trainer.resume=new")
    return source.config, overrides


def locate(path: str) -> Source:
    """Find the configuration that ``path`` means.

    It may be a file, a ``pretrained_model`` folder, a step, a folder of checkpoints, ``last``, or the folder of a run,
    of which the newest complete step counts.
    """
    found = Path(path).expanduser()
    if not found.is_dir():  # a file that is not there is for the reader to name
        held = found.name == TRAIN_CONFIG and found.parent.name == PRETRAINED
        return Source(found, found.parent.parent.resolve() if held else None)
    for folder in (found, found / PRETRAINED):
        if (folder / TRAIN_CONFIG).is_file():
            return Source(folder / TRAIN_CONFIG, folder.parent.resolve())
    for folder in (found / CHECKPOINTS, found):
        if folder.is_dir() and any(item.name.isdigit() for item in folder.iterdir()):
            step = CheckpointStore(folder).resolve("auto")
            if step is None:
                raise CheckpointError(f"No checkpoint in {folder} is whole.")
            config = step / PRETRAINED / TRAIN_CONFIG
            if not config.is_file():
                raise CheckpointError(f"{step} holds no {PRETRAINED}/{TRAIN_CONFIG}: supervised training writes it.")
            return Source(config, step)
    raise CheckpointError(
        f"{found} holds no {TRAIN_CONFIG}. Give that file, its {PRETRAINED} folder, a step, a folder of checkpoints or "
        "the folder of a run."
    )


def _quoted(path: Path) -> str:
    """Write a path as a YAML text: a step's name alone would be a number."""
    return "'" + str(path).replace("'", "''") + "'"
