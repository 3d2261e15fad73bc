"""Samples of a LeRobot data set: a frame, with what precedes and follows it at given distances in time."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugrl.data.lerobot.metadata import IMAGE_TYPES, DatasetInfo, Episode, read_table, read_tasks
from plugrl.data.lerobot.video import VideoFiles, decode_image
from plugrl.errors import ConfigError, DataError, nearest, one_of

_KEY = "data.source_options"

CACHED_BYTES = 256 * 2**20
"""Decoded pictures of a data set that are kept in memory: small ones are decoded once and not in every epoch."""


class FrameSamples:
    """One sample for each frame of the chosen episodes, but for the last ``drop_n_last_frames`` of each.

    A feature with delta timestamps is ``[B, T, ...]`` with ``<feature>_is_pad`` [B, T] beside it: True where the time
    lies outside the episode, and the value is that of the nearest frame inside. Other features are ``[B, ...]``. Images
    are [..., 3, H, W], float32 in [0, 1]. ``task_index`` [B] numbers the texts in :attr:`tasks`.

    Numbers of the chosen episodes are kept in memory, images are decoded when they are asked for; those stored as
    pictures stay decoded, as far as ``CACHED_BYTES`` go.

    Raises ConfigError for an unknown feature, or a time that is no multiple of a frame's, and DataError for files.
    """

    def __init__(
        self,
        info: DatasetInfo,
        episodes: Sequence[int],
        *,
        features: Sequence[str] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        drop_n_last_frames: int = 0,
        tolerance_s: float = 1e-4,
    ) -> None:
        if drop_n_last_frames < 0:
            raise ConfigError(f"{_KEY}.drop_n_last_frames: must be at least 0, not {drop_n_last_frames}.")
        self.info = info
        deltas = delta_timestamps or {}
        self.features = _chosen(info, features, deltas)
        self.tasks = read_tasks(info.root)
        self._offsets = {name: _offsets(name, times, info.fps, tolerance_s) for name, times in deltas.items()}
        # Boundaries alone, and no entry for each frame: a data set has millions of them.
        self._episodes = [info.table[number] for number in episodes]
        self._ends = list(accumulate(max(0, item.length - drop_n_last_frames) for item in self._episodes))
        self._starts = [0, *accumulate(item.length for item in self._episodes)]
        self._columns = self._read_columns()
        self._videos = VideoFiles(tolerance_s)
        self._lock = threading.Lock()
        self._decoded: dict[tuple[str, int], Tensor] = {}
        self._cached = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def num_episodes(self) -> int:
        """Episodes that were chosen."""
        return len(self._episodes)

    def column(self, name: str) -> Tensor | None:
        """Return a feature of numbers in all frames of the chosen episodes, [N, ...]; None for one that is not read."""
        found = self._columns.get(name)
        return found if isinstance(found, Tensor) else None

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return samples by their numbers; see the class for the shapes."""
        places = [self._place(row) for row in rows]
        found: dict[str, Tensor] = {}
        for name in self.features:
            frames, outside = self._frames(name, places)
            if self.info.features[name]["dtype"] in IMAGE_TYPES:
                found[name] = self._images(name, places, frames)
            else:
                base = torch.tensor([self._starts[which] for which, _ in places])
                found[name] = self._columns[name][frames + base.unsqueeze(1)]
            if name in self._offsets:
                found[f"{name}_is_pad"] = outside
            else:
                found[name] = found[name].squeeze(1)
        first = torch.tensor([self._starts[which] + frame for which, frame in places])
        found["task_index"] = self._columns["task_index"][first]
        return found

    def _place(self, row: int) -> tuple[int, int]:
        """Return (position of the episode among the chosen ones, frame in it) of a sample."""
        if not 0 <= row < len(self):
            raise IndexError(f"There is no sample {row} among {len(self)}.")
        which = bisect_right(self._ends, row)
        return which, row - (self._ends[which - 1] if which else 0)

    def _frames(self, name: str, places: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return the frames [B, T] to read, kept inside their episodes, and where they would lie outside."""
        offsets = torch.tensor(self._offsets.get(name, [0]))
        asked = torch.tensor([frame for _, frame in places]).unsqueeze(1) + offsets
        last = torch.tensor([self._episodes[which].length - 1 for which, _ in places]).unsqueeze(1)
        inside = torch.minimum(asked.clamp(min=0), last)
        return inside, asked != inside

    def _images(self, name: str, places: Sequence[tuple[int, int]], frames: Tensor) -> Tensor:
        pictures = []
        with self._lock:
            for (which, _), numbers in zip(places, frames.tolist(), strict=True):
                episode = self._episodes[which]
                if self.info.features[name]["dtype"] == "video":
                    start = episode.video_start[name]
                    times = [start + float(self._columns["timestamp"][self._starts[which] + n]) for n in numbers]
                    pictures.append(self._videos.frames(self.info.video_file(episode, name), times))
                else:
                    place = f"{self.info.data_file(episode)}, {name}"
                    images = [self._stored(name, self._starts[which] + number, place) for number in numbers]
                    pictures.append(torch.stack(images).float() / 255)
                shape = tuple(self.info.policy_features[name]["shape"])
                if tuple(pictures[-1].shape[1:]) != shape:
                    raise DataError(
                        f"{self.info.root}: the pictures of {name} in episode {episode.number} are "
                        f"{tuple(pictures[-1].shape[1:])}; info.json says {shape} (channels, height, width)."
                    )
        return torch.stack(pictures)

    def _stored(self, name: str, row: int, place: str) -> Tensor:
        """Return the picture uint8 [3, H, W] of a row; the first ``CACHED_BYTES`` of them stay decoded."""
        found = self._decoded.get((name, row))
        if found is None:
            found = (decode_image(self._columns[name][row], place) * 255).round().to(torch.uint8)
            if self._cached + found.numel() <= CACHED_BYTES:
                self._decoded[name, row] = found
                self._cached += found.numel()
        return found

    def _read_columns(self) -> dict[str, Any]:
        """Read what is no video, of the chosen episodes one after the other; stored images stay compressed."""
        names = [name for name in self.features if self.info.features[name]["dtype"] != "video"]
        names = list(dict.fromkeys([*names, "timestamp", "task_index"]))
        parts: dict[str, list[Any]] = {name: [] for name in names}
        tables: dict[Path, Any] = {}
        for episode in self._episodes:
            path = self.info.data_file(episode)
            if path not in tables:
                tables = {path: read_table(path, [*names, "index"])}  # episodes of a file lie together
            rows = _rows_of(tables[path], episode, path)
            for name in names:
                parts[name].append(self._values(name, rows.column(name), path))
        return {
            name: sum(values, []) if values and isinstance(values[0], list) else _joined(values)
            for name, values in parts.items()
        }

    def _values(self, name: str, column: Any, path: Path) -> Any:
        feature = self.info.features.get(name, {"dtype": "int64", "shape": [1]})
        if feature["dtype"] == "image":
            return [item["bytes"] for item in column.to_pylist()]
        shape = [] if name in ("timestamp", "task_index") else [int(size) for size in feature["shape"]]
        try:
            values = _numbers(column)
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: column {name!r} does not hold {shape} numbers in each row: {error}.") from error
        if values.numel() != len(column) * torch.Size(shape).numel():
            each = values.numel() / max(len(column), 1)
            raise DataError(f"{path}: column {name!r} has {each:g} numbers a row; its shape is {tuple(shape)}.")
        dtype = getattr(torch, str(feature["dtype"]), None)
        return values.reshape(-1, *shape).to(dtype if isinstance(dtype, torch.dtype) else values.dtype)


def _numbers(column: Any) -> Tensor:
    """Return all numbers of a column of numbers, or of lists of them, in one row.

    Raises ValueError when values are missing, or rows have different lengths: the numbers would slip into other rows.
    """
    array = column.combine_chunks()
    array = getattr(array, "storage", array)
    while hasattr(array, "flatten") and hasattr(array.type, "value_type"):
        lengths = array.value_lengths().unique()
        if len(lengths) > 1:
            raise ValueError(f"its rows have {one_of(sorted(map(str, lengths.to_pylist())))} of them")
        array = array.flatten()
    if array.null_count:
        raise ValueError("values are missing")
    return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy())


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.empty(0)


def _rows_of(table: Any, episode: Episode, path: Path) -> Any:
    """Return an episode's rows of its file: those whose running number lies in its range."""
    if not len(table):
        raise DataError(f"{path}: the file has no rows.")
    start = episode.start - int(table.column("index")[0].as_py())
    rows = table.slice(start, episode.length) if start >= 0 else table.slice(0, 0)
    if len(rows) != episode.length or int(rows.column("index")[0].as_py()) != episode.start:
        wanted = f"the rows {episode.start} to {episode.stop} of episode {episode.number}"
        raise DataError(f"{path}: does not hold {wanted}.")
    return rows


def _chosen(info: DatasetInfo, features: Sequence[str] | None, deltas: Mapping[str, Sequence[float]]) -> list[str]:
    known = list(info.policy_features)
    chosen = known if features is None else list(features)
    for key, names in (("features", chosen), ("delta_timestamps", list(deltas))):
        for name in names:
            if name not in known:
                like = nearest(name, known)
                hint = f" Did you mean {like}?" if like else f" It has: {one_of(known)}."
                raise ConfigError(f"{_KEY}.{key}: the data set has no feature {name!r}.{hint}")
    unread = [name for name in deltas if name not in chosen]
    if unread:
        raise ConfigError(f"{_KEY}.delta_timestamps: {unread[0]} is not among the features that are read.")
    return chosen


def _offsets(name: str, times: Sequence[float], fps: float, tolerance_s: float) -> list[int]:
    if not times:
        raise ConfigError(f"{_KEY}.delta_timestamps.{name}: give at least one time.")
    offsets = [round(time * fps) for time in times]
    for time, offset in zip(times, offsets, strict=True):
        if abs(time - offset / fps) > tolerance_s:
            raise ConfigError(
                f"{_KEY}.delta_timestamps.{name}: {time} s is no multiple of a frame's {1 / fps:.6f} s ({fps:g} fps)."
            )
    return offsets
