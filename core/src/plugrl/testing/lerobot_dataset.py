"""Writes a small LeRobot data set of version 3, with parquet and an encoded video, for tests of what reads one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VIDEO = "observation.images.top"
STATE_SIZE = 2


def state_at(episode: int, frame: int) -> list[float]:
    """Return the state [2] of a frame: two sines that no other episode shares."""
    return [math.sin(0.3 * frame + episode), 10.0 + 5.0 * math.cos(0.2 * frame - episode)]


def action_at(episode: int, frame: int) -> list[float]:
    """Return the action [2]: a linear function of the state, so that cloning it can succeed."""
    first, second = state_at(episode, frame)
    return [2.0 * first + 1.0, 3.0 - 0.5 * second]


def brightness(index: int) -> int:
    """Return the grey value of the frame with this running number."""
    return 20 + (index * 7) % 200


def write_lerobot_dataset(
    root: Path, lengths: Sequence[int] = (12, 9, 7), *, fps: int = 10, video: bool = True, size: int = 32
) -> Path:
    """Write episodes of the given lengths, two of them in each data file, and return ``root``.

    Every frame of the video is of one grey, :func:`brightness` of its running number.
    """
    import pyarrow
    from pyarrow import parquet

    rows, episodes, start, seconds = [], [], 0, 0.0
    for number, length in enumerate(lengths):
        rows.append([_row(number, frame, start + frame, fps) for frame in range(length)])
        episode: dict[str, Any] = {
            "episode_index": number, "tasks": [f"task {number % 2}"], "length": length,
            "dataset_from_index": start, "dataset_to_index": start + length,
            "data/chunk_index": 0, "data/file_index": number // 2,
        }  # fmt: skip
        if video:
            episode |= {
                f"videos/{VIDEO}/chunk_index": 0, f"videos/{VIDEO}/file_index": 0,
                f"videos/{VIDEO}/from_timestamp": seconds, f"videos/{VIDEO}/to_timestamp": seconds + length / fps,
            }  # fmt: skip
        episodes.append(episode)
        start += length
        seconds += length / fps
    for file in range((len(rows) + 1) // 2):
        flat = [row for one in rows[2 * file : 2 * file + 2] for row in one]
        _write(parquet, pyarrow.Table.from_pylist(flat), root / f"data/chunk-000/file-{file:03d}.parquet")
    _write(parquet, pyarrow.Table.from_pylist(episodes), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = [{"task_index": index, "task": f"task {index}"} for index in range(2)]
    _write(parquet, pyarrow.Table.from_pylist(tasks), root / "meta/tasks.parquet")
    (root / "meta/info.json").write_text(json.dumps(_info(lengths, fps, video, size), indent=2))
    (root / "meta/stats.json").write_text(json.dumps(_statistics([row for one in rows for row in one])))
    if video:
        _encode(root / f"videos/{VIDEO}/chunk-000/file-000.mp4", start, fps, size)
    return root


def _row(episode: int, frame: int, index: int, fps: int) -> dict[str, Any]:
    return {
        "observation.state": state_at(episode, frame), "action": action_at(episode, frame),
        "timestamp": frame / fps, "frame_index": frame, "episode_index": episode, "index": index,
        "task_index": episode % 2,
    }  # fmt: skip


def _info(lengths: Sequence[int], fps: int, video: bool, size: int) -> dict[str, Any]:
    vector = {"dtype": "float32", "shape": [STATE_SIZE], "names": ["x", "y"]}
    features: dict[str, Any] = {"observation.state": vector, "action": vector}
    if video:
        features[VIDEO] = {"dtype": "video", "shape": [size, size, 3], "names": ["height", "width", "channels"]}
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    return {
        "codebase_version": "v3.0", "robot_type": "test", "fps": fps, "features": features,
        "total_episodes": len(lengths), "total_frames": sum(lengths), "total_tasks": 2, "chunks_size": 1000,
        "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if video else None,
    }  # fmt: skip


def _statistics(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    import numpy

    found = {}
    for name in ("observation.state", "action"):
        values = numpy.array([row[name] for row in rows], dtype=numpy.float64)
        of_axis = {key: getattr(numpy, key)(values, axis=0).tolist() for key in ("mean", "std", "min", "max")}
        found[name] = {**of_axis, "count": [len(rows)]}
    return found


def _write(parquet: Any, table: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def _encode(path: Path, frames: int, fps: int, size: int) -> None:
    import av
    import numpy

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=fps)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = 4
        for index in range(frames):
            picture = numpy.full((size, size, 3), brightness(index), dtype=numpy.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
