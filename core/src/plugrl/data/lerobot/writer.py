"""Writes LeRobot data sets of version 3, episode by episode.

Pictures lie in the parquet files as PNG: a video would smear small ones. The folder appears when all is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.data.lerobot.metadata import BOOKKEEPING
from plugrl.data.lerobot.png import encode_png
from plugrl.data.lerobot.statistics import PictureStatistics, describe
from plugrl.data.loading import import_parquet
from plugrl.errors import DataError

FILE_BYTES = 100 * 2**20
"""A data file of this size is closed, and the next episode begins another."""

CHUNK_FILES = 1000
"""Files of one folder."""

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


class DatasetWriter:
    """Takes episodes and leaves a data set in ``root``, which must not exist. Use it as a context manager.

    Args:
        root: the folder; its content lies under a temporary name until :meth:`close`.
        fps: frames of a second.
        robot_type: what is acted with, for the record.

    Raises DataError when ``root`` exists, and MissingDependency without pyarrow.
    """

    def __init__(self, root: Path, fps: float, robot_type: str) -> None:
        self._parquet = import_parquet()
        self.root = root
        if root.exists():
            raise DataError(f"{root} exists already. Remove it, or give another folder.")
        self._folder = root.with_name(f".{root.name}.{os.getpid()}.part")
        self.fps = fps
        self._robot = robot_type
        self._features: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._numbers: dict[str, list[NDArray[Any]]] = {}
        self._pictures: dict[str, PictureStatistics] = {}
        self._file: Any = None
        self._files = self._bytes = self.frames = 0

    @property
    def episodes(self) -> int:
        """Episodes written so far."""
        return len(self._episodes)

    def add(self, frames: Mapping[str, NDArray[Any]], task: str) -> None:
        """Write an episode: each feature [T, ...]; uint8 [T, H, W, 3] are pictures. ``task`` is the instruction.

        Raises DataError when features, shapes or lengths are not those of the episodes before.
        """
        features = {name: _feature(values) for name, values in frames.items()}
        self._features = self._features or features
        lengths = {len(values) for values in frames.values()}
        if features != self._features or len(lengths) != 1 or 0 in lengths:
            raise DataError(
                f"Episode {self.episodes} has {_shapes(frames)}; each needs the same features, of one length each, as "
                f"the first: {', '.join(self._features)}."
            )
        length, number = lengths.pop(), self.episodes
        index = self._tasks.setdefault(task, len(self._tasks))
        counted: dict[str, NDArray[Any]] = {
            "timestamp": (np.arange(length) / self.fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, number),
            "index": np.arange(self.frames, self.frames + length),
            "task_index": np.full(length, index),
        }
        place = self._write({**frames, **counted})
        self._episodes.append(
            {
                "episode_index": number, "tasks": [task], "length": length,
                "data/chunk_index": place[0], "data/file_index": place[1],
                "dataset_from_index": self.frames, "dataset_to_index": self.frames + length,
                "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0,
                **self._describe(frames, counted),
            }
        )  # fmt: skip
        self.frames += length

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return the rows [N, ...] of a feature that was written so far, None for one that is not there."""
        parts = self._numbers.get(name)
        return None if parts is None else np.concatenate(parts)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a file of one's own into the data set."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Write what describes the data set and give the folder its name. Raises DataError without an episode."""
        if not self._episodes:
            raise DataError(f"{self.root}: a data set needs at least one episode.")
        self._finish_file()
        import pyarrow

        meta = self._folder / "meta"
        (meta / "episodes/chunk-000").mkdir(parents=True, exist_ok=True)
        self._parquet.write_table(
            pyarrow.Table.from_pylist(self._episodes), meta / "episodes/chunk-000/file-000.parquet"
        )
        self._parquet.write_table(_task_table(self._tasks), meta / "tasks.parquet")
        described = {name: describe(_rows(np.concatenate(parts))) for name, parts in self._numbers.items()}
        described |= {name: statistics.describe() for name, statistics in self._pictures.items()}
        self.write_json("meta/stats.json", described)
        self.write_json("meta/info.json", self._info())
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self._folder.rename(self.root)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.close()
        finally:  # after close() there is nothing under the temporary name
            if self._file is not None:
                self._file.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    # ----------------------------------------------------------------- parts
    def _write(self, columns: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
        """Write the rows of an episode; returns the number of the folder and that of the file in it."""
        import pyarrow

        arrays = {name: _column(values) for name, values in columns.items()}
        table = pyarrow.table(arrays)
        if self._file is not None and self._bytes + table.nbytes > FILE_BYTES:
            self._finish_file()
        chunk, file = divmod(self._files, CHUNK_FILES)
        if self._file is None:
            path = self._folder / DATA_PATH.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._parquet.ParquetWriter(path, table.schema)
        self._file.write_table(table)
        self._bytes += table.nbytes
        return chunk, file

    def _finish_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._bytes = None, 0
            self._files += 1

    def _describe(self, frames: Mapping[str, NDArray[Any]], counted: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Take an episode into the statistics, and return its own under the names of the table of episodes."""
        found: dict[str, dict[str, Any]] = {}
        for name, values in {**frames, **counted}.items():
            if self._features.get(name, {}).get("dtype") == "image":
                self._pictures.setdefault(name, PictureStatistics()).add(values)
                own = PictureStatistics()
                own.add(values)
                found[name] = own.describe()
            else:
                self._numbers.setdefault(name, []).append(values)
                found[name] = describe(_rows(values))
        return {f"stats/{name}/{key}": value for name, stats in found.items() for key, value in stats.items()}

    def _info(self) -> dict[str, Any]:
        bookkeeping = {
            name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
            for name in BOOKKEEPING
        }
        return {
            "codebase_version": "v3.0", "robot_type": self._robot, "total_episodes": self.episodes,
            "total_frames": self.frames, "total_tasks": len(self._tasks), "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": FILE_BYTES // 2**20, "video_files_size_in_mb": 200,
            "fps": int(self.fps) if float(self.fps).is_integer() else self.fps,
            "splits": {"train": f"0:{self.episodes}"}, "data_path": DATA_PATH, "video_path": None,
            "features": {**self._features, **bookkeeping},
        }  # fmt: skip


def _feature(values: NDArray[Any]) -> dict[str, Any]:
    if values.dtype == np.uint8 and values.ndim == 4:
        return {"dtype": "image", "shape": list(values.shape[1:]), "names": ["height", "width", "channels"]}
    return {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), -1)


def _shapes(frames: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(f"{name} {list(values.shape)}" for name, values in frames.items())


def _column(values: NDArray[Any]) -> Any:
    """Return an arrow array of T rows: plain numbers, lists of one length, or pictures as files."""
    import pyarrow

    if values.dtype == np.uint8 and values.ndim == 4:
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        return pyarrow.array([{"bytes": encode_png(picture), "path": None} for picture in values], kind)
    if values.ndim == 1:
        return pyarrow.array(values)
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


def _task_table(tasks: Mapping[str, int]) -> Any:
    """Return the table of tasks, whose index is the text when pandas reads it."""
    import pyarrow

    table = pyarrow.table({"task_index": pyarrow.array(list(tasks.values())), "task": pyarrow.array(list(tasks))})
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
        for name, kind, numpy_type in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    described = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    return table.replace_schema_metadata({b"pandas": json.dumps(described).encode()})
