"""A checkpoint folder: its configuration, its statistics of actions and its other files, kept to be saved again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plugrl.config.schema.model import ADAPTER_CONFIG
from plugrl.errors import CheckpointError, ConfigError
from plugrl_models_openvla.config import OpenVLAConfig
from plugrl_models_openvla.folder_config import FolderConfig, PreprocessorConfig
from plugrl_models_openvla.weight_files import INDEX, WeightFiles

CONFIG, PREPROCESSOR, STATISTICS = "config.json", "preprocessor_config.json", "dataset_statistics.json"
_KEPT = {".json", ".jinja", ".model", ".py", ".txt", ".md"}
_LEFT = {INDEX, ADAPTER_CONFIG, "train_config.json"}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What a policy knows of the checkpoint it comes from, or would come from.

    Args:
        config: ``config.json`` with ``norm_stats`` as they hold: those of ``dataset_statistics.json`` and then of the
            user over its own.
        preprocessor: ``preprocessor_config.json``.
        files: contents of the files beside the weights by name.
        weights: the files of the weights; None for random weights.
    """

    config: FolderConfig
    preprocessor: PreprocessorConfig
    files: Mapping[str, bytes] = field(default_factory=dict)
    weights: WeightFiles | None = None

    @classmethod
    def of(cls, config: OpenVLAConfig) -> Folder:
        """Return the folder at ``config.path``, or what ``config.config`` makes.

        Raises ConfigError or CheckpointError for files that are missing or cannot be read.
        """
        folder = cls.read(Path(config.path).expanduser()) if config.path is not None else cls.new(config.config or {})
        if config.norm_stats is None:
            return folder
        given = config.norm_stats
        if isinstance(given, str):
            file = Path(given).expanduser()
            given = _object(file.read_bytes() if file.is_file() else None, file, "model.norm_stats")
        return folder.with_statistics(given)

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Read the folder of a checkpoint."""
        if not path.is_dir():
            raise ConfigError(f"model.path: there is no folder {path}.")
        files = {
            file.name: file.read_bytes()
            for file in sorted(path.iterdir())
            if file.is_file() and file.suffix in _KEPT and file.name not in _LEFT
        }
        config = FolderConfig.read(_object(files.get(CONFIG), path / CONFIG, "model.path"))
        preprocessor: Mapping[str, Any] = {}
        if PREPROCESSOR in files:
            preprocessor = _object(files[PREPROCESSOR], path / PREPROCESSOR, "model.path")
        folder = cls(config=config, preprocessor=PreprocessorConfig.read(preprocessor), files=files,
                     weights=WeightFiles.read(path))  # fmt: skip
        if STATISTICS in files:
            folder = folder._with(_object(files[STATISTICS], path / STATISTICS, "model.path"))
        return folder

    @classmethod
    def new(cls, values: Mapping[str, Any]) -> Folder:
        """Return what the content of a ``config.json`` alone makes; a misspelt key is an error here."""
        config = FolderConfig.read(values, strict=True)
        towers = config.towers
        images = {
            "image_processor_type": "PrismaticImageProcessor",
            "image_resize_strategy": config.image_resize_strategy,
            "input_sizes": [[3, tower.image_size, tower.image_size] for tower in towers],
            "interpolations": ["bicubic"] * len(towers),
            "means": [list(tower.mean) for tower in towers],
            "stds": [list(tower.std) for tower in towers],
            "use_fused_vision_backbone": config.is_fused,
        }
        written = {"model_type": "openvla", "architectures": ["OpenVLAForActionPrediction"], **values}
        files = {CONFIG: _text(written), PREPROCESSOR: _text(images)}
        return cls(config=config, preprocessor=PreprocessorConfig.read(images), files=files)

    def with_statistics(self, given: Mapping[str, Any]) -> Folder:
        """Return the same with statistics of more data sets, or others of the same; they are saved with the model."""
        old = self.files.get(STATISTICS)
        companion = {**(_object(old, STATISTICS, "model.path") if old else {}), **given}
        return replace(self, files={**self.files, STATISTICS: _text(companion)})._with(given)

    def _with(self, statistics: Mapping[str, Any]) -> Folder:
        merged = {**self.config.norm_stats, **statistics}
        return replace(self, config=self.config.model_copy(update={"norm_stats": merged}))

    def save(self, directory: Path) -> None:
        """Write the files beside the weights."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def _object(content: bytes | None, file: Path | str, key: str) -> dict[str, Any]:
    if content is None:
        raise ConfigError(f"{key}: there is no file {file}.")
    try:
        values = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{key}: {file} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{key}: {file} must hold a JSON object, not {values!r:.60}.")
    return values


def _text(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()
