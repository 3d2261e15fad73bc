"""Videos of an evaluation: a few of its scenes are filmed while they are acted in."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plugrl.envs.base import EpisodeRecord, VecEnv
from plugrl.envs.video import EpisodeVideos
from plugrl.errors import MissingDependency, UnsupportedCapability
from plugrl.workers.embodied.scenes import Scenes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilmOrder:
    """Which videos are wanted: of the first ``scenes`` scenes, in ``folder``, names beginning with ``prefix``."""

    folder: str
    scenes: int
    prefix: str


class Films:
    """The videos of a worker's slices. What cannot be filmed is said once, and nothing else depends on it."""

    def __init__(self, order: FilmOrder | None, scenes: Scenes, slices: Iterable[int]) -> None:
        self._videos: dict[int, EpisodeVideos] = {}
        for index in slices if order is not None else ():
            assert order is not None
            count = min(max(order.scenes - scenes.first(index), 0), scenes.in_slice)
            if count:
                prefix = f"{order.prefix}slice{index}_"
                self._videos[index] = EpisodeVideos(Path(order.folder), range(count), limit=count, prefix=prefix)

    def film(self, index: int, env: VecEnv) -> None:
        """Take a picture of the filmed scenes of a slice."""
        if index not in self._videos:
            return
        try:
            self._videos[index].film(env)
        except (UnsupportedCapability, MissingDependency) as error:
            logger.warning("env.eval.videos: no videos: %s", error)
            self.close()

    def finish(self, index: int, episodes: Iterable[EpisodeRecord]) -> None:
        """End the videos of episodes that are over."""
        if index in self._videos:
            self._videos[index].finish(episodes)

    def close(self) -> None:
        """Throw away what is not finished."""
        while self._videos:
            self._videos.popitem()[1].close()
