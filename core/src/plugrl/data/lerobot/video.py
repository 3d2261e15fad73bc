"""Frames of a video at given times, through PyAV, which is imported when the first image is read."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugrl.envs.video import import_av
from plugrl.errors import DataError

_OPEN_FILES = 8


class VideoFiles:
    """Reads frames and keeps the files that were used last open. Not to be shared by threads."""

    def __init__(self, tolerance_s: float) -> None:
        self.tolerance_s = tolerance_s
        self._open: OrderedDict[Path, Any] = OrderedDict()

    def frames(self, path: Path, times: Sequence[float]) -> Tensor:
        """Return the frames [T, 3, H, W] nearest to ``times`` in seconds, float32 in [0, 1].

        Raises DataError when the file cannot be decoded, or no frame is within the tolerance of a time.
        """
        av = import_av()
        wanted = sorted(set(times))
        best: dict[float, tuple[float, Any]] = {}
        try:
            container = self._container(av, path)
            stream = container.streams.video[0]
            # A little before the first: times that were rounded must not fall behind their frame.
            begin = max(0.0, wanted[0] - self.tolerance_s)
            container.seek(int(begin / stream.time_base), stream=stream, backward=True)
            for frame in container.decode(stream):
                for time in wanted:
                    distance = abs(frame.time - time)
                    if time not in best or distance < best[time][0]:
                        best[time] = (distance, frame)
                if frame.time >= wanted[-1]:
                    break
            pictures = {time: _picture(frame) for time, (_, frame) in best.items()}
        except (av.FFmpegError, OSError, IndexError) as error:
            raise DataError(f"{path}: cannot be decoded ({error}).") from error
        for time in wanted:
            distance = best[time][0] if time in best else float("inf")
            if distance > self.tolerance_s:
                raise DataError(
                    f"{path}: no frame within {self.tolerance_s} s of {time:.6f} s; the nearest is {distance:.6f} s "
                    "off (data.source_options.tolerance_s)."
                )
        return torch.stack([pictures[time] for time in times])

    def _container(self, av: Any, path: Path) -> Any:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        while len(self._open) >= _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        container = av.open(str(path))
        container.streams.video[0].thread_type = "NONE"  # many workers decode at once
        self._open[path] = container
        return container

    def close(self) -> None:
        """Close every file."""
        while self._open:
            self._open.popitem()[1].close()


def decode_image(data: bytes, place: str) -> Tensor:
    """Return the picture [3, H, W] of a compressed image, float32 in [0, 1]. Raises DataError naming ``place``."""
    av = import_av()
    try:
        with av.open(io.BytesIO(data)) as container:
            return _picture(next(container.decode(video=0)))
    except (av.FFmpegError, OSError, IndexError, StopIteration) as error:
        raise DataError(f"{place}: not a readable image ({error}).") from error


def _picture(frame: Any) -> Tensor:
    return torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1).float() / 255
