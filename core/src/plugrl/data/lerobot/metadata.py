"""What lies under ``meta/``: ``info.json``, ``stats.json``, ``tasks.parquet`` and the table of episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.data.loading import import_parquet
from plugrl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

VERSION = "v3"
IMAGE_TYPES = ("video", "image")
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every data set has and no policy sees."""


@dataclass(frozen=True)
class Episode:
    """One row of the table of episodes.

    start, stop: rows of the data set, ``[start, stop)``. files: of the numbers and of each video, ``(chunk, file)``.
    video_start: seconds into the file at which the episode begins, by video.
    """

    number: int
    start: int
    stop: int
    data_file: tuple[int, int]
    video_files: Mapping[str, tuple[int, int]]
    video_start: Mapping[str, float]

    @property
    def length(self) -> int:
        """Frames."""
        return self.stop - self.start


@dataclass(frozen=True)
class DatasetInfo:
    """``meta/info.json`` and the table of episodes. ``features``: ``{name: {"dtype", "shape", "names"}}``."""

    root: Path
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    data_path: str
    video_path: str | None
    table: Mapping[int, Episode]

    @staticmethod
    def load(root: Path) -> DatasetInfo:
        """Read the metadata. Raises DataError naming the file that is missing, malformed or of another version."""
        path = root / "meta" / "info.json"
        values = read_json(path)
        try:
            version = str(values["codebase_version"])
            if not version.startswith(VERSION):
                raise DataError(
                    f"{path}: the data set has version {version}; {VERSION} is read. LeRobot converts older ones."
                )
            features = values["features"]
            _check(features, float(values["fps"]), values["data_path"], values.get("video_path"))
            videos = [name for name, feature in features.items() if feature["dtype"] == "video"]
            return DatasetInfo(
                root=root,
                fps=float(values["fps"]),
                features=features,
                data_path=str(values["data_path"]),
                video_path=values.get("video_path"),
                table=_read_episodes(root, videos),
            )
        except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path}: not the description of a data set: {error!r}.") from error

    @property
    def episodes(self) -> list[int]:
        """Numbers of all episodes, ascending."""
        return sorted(self.table)

    @cached_property
    def policy_features(self) -> dict[str, dict[str, Any]]:
        """What a policy may see or give, as ``{"type", "shape"}``; images are [channels, height, width]."""
        return {name: described for name in self.features if (described := self._describe(name)) is not None}

    def _describe(self, name: str) -> dict[str, Any] | None:
        feature = self.features[name]
        shape = [int(size) for size in feature["shape"]]
        if feature["dtype"] in IMAGE_TYPES:
            names = list(feature.get("names") or ())
            first = str(names[0]).startswith("channel") if len(names) == 3 else shape[0] in (1, 3) and shape[2] > 4
            return {"type": "VISUAL", "shape": shape if first else [shape[2], shape[0], shape[1]]}
        if name in BOOKKEEPING:
            return None
        if name == "action" or name.startswith("action."):
            return {"type": "ACTION", "shape": shape}
        if name == "observation.environment_state":
            return {"type": "ENV", "shape": shape}
        return {"type": "STATE", "shape": shape} if name.startswith("observation.") else None

    def check_episodes(self, numbers: Iterable[int], key: str) -> list[int]:
        """Return the episodes, sorted and once each. Raises ConfigError, starting with ``key``, for one not there."""
        wanted = sorted(set(numbers))
        unknown = [number for number in wanted if number not in self.table]
        if unknown:
            last = max(self.table, default=-1)
            raise ConfigError(f"{key}: there is no episode {unknown[0]} in {self.root}; it has 0 to {last}.")
        return wanted

    def data_file(self, episode: Episode) -> Path:
        """Return the parquet file that holds the numbers of an episode."""
        chunk, file = episode.data_file
        return self.root / self.data_path.format(chunk_index=chunk, file_index=file)

    def video_file(self, episode: Episode, key: str) -> Path:
        """Return the file that holds a video of an episode."""
        if not self.video_path:
            raise DataError(f"{self.root / 'meta' / 'info.json'}: {key} is a video, but video_path is not given.")
        chunk, file = episode.video_files[key]
        return self.root / self.video_path.format(video_key=key, chunk_index=chunk, file_index=file)


def _check(features: Mapping[str, Mapping[str, Any]], fps: float, data_path: str, video_path: str | None) -> None:
    """Raise ValueError, or what a value of another type raises, for what would fail later and further away."""
    if not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps:g}")
    for name, feature in features.items():
        shape = [int(size) for size in feature["shape"]]
        if feature["dtype"] in IMAGE_TYPES and len(shape) != 3:
            raise ValueError(f"the pictures of {name} have the shape {shape}")
    data_path.format(chunk_index=0, file_index=0)
    if video_path is not None:
        video_path.format(video_key="", chunk_index=0, file_index=0)


def read_json(path: Path) -> dict[str, Any]:
    """Read an object. Raises DataError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(values).__name__}.")
    return values


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Read a parquet file as an arrow table. Raises DataError naming the file, and the column that it lacks."""
    parquet = import_parquet()
    try:
        if columns is not None:
            have = parquet.read_schema(path).names
            missing = [name for name in columns if name not in have]
            if missing:
                raise DataError(f"{path}: no column {missing[0]!r}. It has: {', '.join(have)}.")
        return parquet.read_table(path, columns=None if columns is None else list(columns))
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a readable parquet file ({error}).") from error


def read_statistics(root: Path) -> dict[str, dict[str, Tensor]]:
    """Read ``meta/stats.json``, empty where there is none. Raises DataError when it is malformed."""
    import torch

    path = root / "meta" / "stats.json"
    if not path.is_file():
        return {}
    try:
        return {
            feature: {name: torch.tensor(value, dtype=torch.float32) for name, value in known.items()}
            for feature, known in read_json(path).items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a table of statistics: {error}.") from error


def read_tasks(root: Path) -> dict[int, str]:
    """Read the task texts by index; empty where the data set has none."""
    path = root / "meta" / "tasks.parquet"
    if not path.is_file():
        return {}
    table = read_table(path)
    # The text is the index of the frame that was written, whose column pandas names.
    texts = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if texts is None or "task_index" not in table.column_names:
        raise DataError(f"{path}: needs the columns task and task_index, has {', '.join(table.column_names)}.")
    return {int(row["task_index"]): str(row[texts]) for row in table.to_pylist()}


def _read_episodes(root: Path, videos: Sequence[str]) -> dict[int, Episode]:
    folder = root / "meta" / "episodes"
    files = sorted(folder.glob("chunk-*/file-*.parquet"))
    if not files:
        raise DataError(f"{folder} holds no chunk-*/file-*.parquet, the table of episodes.")
    own = ["episode_index", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index"]
    of_videos = [f"videos/{key}/{part}" for key in videos for part in ("chunk_index", "file_index", "from_timestamp")]
    table = {}
    for path in files:
        for row in read_table(path, [*own, *of_videos]).to_pylist():
            number = int(row["episode_index"])
            table[number] = Episode(
                number=number,
                start=int(row["dataset_from_index"]),
                stop=int(row["dataset_to_index"]),
                data_file=(int(row["data/chunk_index"]), int(row["data/file_index"])),
                video_files={
                    key: (int(row[f"videos/{key}/chunk_index"]), int(row[f"videos/{key}/file_index"]))
                    for key in videos
                },
                video_start={key: float(row[f"videos/{key}/from_timestamp"]) for key in videos},
            )
    return table
