"""Videos of episodes, for people: H.264 in an MP4 file, which every browser plays, written by PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.episodes import EpisodeRecord
from plugrl.errors import MissingDependency, UserError

if TYPE_CHECKING:
    from plugrl.envs.base import VecEnv

QUALITY = "23"
"""x264's constant rate factor: its own default, in which a picture of 256 x 256 takes about a kilobyte a frame."""


def import_av() -> Any:
    """Import PyAV. Raises MissingDependency with the command that installs it."""
    try:
        import av
    except ImportError as error:
        raise MissingDependency('Videos need PyAV. Install it with: pip install "plugrl[video]"') from error
    return av


class VideoWriter:
    """Writes frames to an MP4 file, which appears under its name when it is closed.

    Args:
        path: of the file; its folder is made.
        fps: frames that are shown in a second.
    """

    def __init__(self, path: str | os.PathLike[str], *, fps: int = 10) -> None:
        self._av = import_av()
        self.path = Path(path)
        self.frames = 0
        self._fps = fps
        self._partial = self.path.with_name(f".{self.path.name}.partial")
        self._container: Any = None
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: Any) -> None:
        """Add a picture, uint8 [H, W, 3], a tensor or an array. Raises UserError for another type or size."""
        picture: NDArray[np.uint8] = np.asarray(frame)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(f"A frame must be uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}.")
        if self._container is None:
            self._open(picture.shape)
        if picture.shape != self._shape:
            raise UserError(f"A frame is {list(picture.shape)}, those before were {list(self._shape)}.")
        self._encode(self._av.VideoFrame.from_ndarray(_even(picture), format="rgb24"))
        self.frames += 1

    def close(self) -> Path | None:
        """Finish the file and return its path, None when there was no frame; calling it again changes nothing."""
        if self._container is not None:
            self._encode(None)
            self._container.close()
            self._container = None
            os.replace(self._partial, self.path)
        return self.path if self.frames else None

    def discard(self) -> None:
        """Give up the file."""
        if self._container is not None:
            self._container.close()
            self._container = None
            self.frames = 0
            self._partial.unlink(missing_ok=True)

    def _open(self, shape: tuple[int, ...]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._shape = shape
        self._container = self._av.open(str(self._partial), mode="w", format="mp4", options={"movflags": "faststart"})
        self._stream = self._container.add_stream("libx264", rate=Fraction(self._fps), options={"crf": QUALITY})
        self._stream.height, self._stream.width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1

    def _encode(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


def _even(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Repeat the last row and column where their number is odd: the format stores colours for two by two."""
    height, width = picture.shape[:2]
    if height % 2 or width % 2:
        picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(picture)


def write_video(path: str | os.PathLike[str], frames: Iterable[Any], *, fps: int = 10) -> Path | None:
    """Write frames, each uint8 [H, W, 3], to an MP4 file and return its path, None when there are none."""
    writer = VideoWriter(path, fps=fps)
    try:
        for frame in frames:
            writer.add(frame)
        return writer.close()
    finally:
        writer.discard()


@dataclass(frozen=True, kw_only=True)
class EpisodeVideo:
    """The video of an episode and the record of it."""

    path: Path
    record: EpisodeRecord


class EpisodeVideos:
    """Films the episodes of a few scenes, a file for each that ends.

    Call :meth:`film` after the reset and after each chunk but before :meth:`finish` of the same chunk.

    Args:
        folder: of the files.
        scenes: indices of the scenes to film.
        limit: videos after which nothing more is filmed.
        fps: frames that are shown in a second; a frame is taken for each call, so for each chunk.
        prefix: what names of files begin with, for example the step of training.
    """

    def __init__(self, folder: str | os.PathLike[str], scenes: Sequence[int], *, limit: int = 4, fps: int = 10,
                 prefix: str = "") -> None:  # fmt: skip
        self._folder, self._fps, self._limit, self._prefix = Path(folder), fps, limit, prefix
        self._scenes = tuple(scenes)
        self._writers: dict[int, VideoWriter] = {}
        self.videos: list[EpisodeVideo] = []

    @property
    def is_done(self) -> bool:
        """Whether there are as many videos as were asked for."""
        return len(self.videos) >= self._limit

    def film(self, env: VecEnv) -> None:
        """Take a picture of each scene. Raises UnsupportedCapability where the environment renders none."""
        if self.is_done:
            return
        for index in self._scenes:
            if index not in self._writers:
                name = f"{self._prefix}scene{index:03d}_seed{env.seeds[index]}.mp4"
                self._writers[index] = VideoWriter(self._folder / name, fps=self._fps)
            self._writers[index].add(env.render(index))

    def finish(self, episodes: Iterable[EpisodeRecord]) -> list[EpisodeVideo]:
        """End the videos of the episodes that are over and return them; dropped ones are thrown away."""
        ended = []
        for record in episodes:
            writer = self._writers.pop(record.index, None)
            if writer is None:
                continue
            path = None if record.dropped or self.is_done else writer.close()
            writer.discard()
            if path is not None:
                ended.append(EpisodeVideo(path=path, record=record))
                self.videos.append(ended[-1])
        return ended

    def close(self) -> None:
        """Throw away what is not finished."""
        while self._writers:
            self._writers.popitem()[1].discard()
