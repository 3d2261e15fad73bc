"""LeRobot data sets of version 3: parquet for numbers, video for images. Found as the data source ``lerobot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from plugrl.data.lerobot.frames import FrameSamples
from plugrl.data.lerobot.metadata import DatasetInfo, read_statistics
from plugrl.data.registry import DataSettings
from plugrl.data.samples import SampleSplits
from plugrl.errors import ConfigError

__all__ = ["DatasetInfo", "FrameSamples", "lerobot"]

_KEY = "data.source_options"


def lerobot(
    config: DataSettings,
    *,
    root: str | None = None,
    episodes: Sequence[int] | None = None,
    val_episodes: Sequence[int] = (),
    features: Sequence[str] | None = None,
    chunk_size: int | None = None,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    drop_n_last_frames: int = 0,
    tolerance_s: float = 1e-4,
) -> SampleSplits:
    """Read a data set from a folder.

    Args:
        root: the folder that holds ``meta/``, ``data/`` and ``videos/``.
        episodes: numbers of the episodes to use; all by default.
        val_episodes: episodes that are held out of training.
        features: features to read; by default all observations and actions. Videos that are left out are not decoded.
        chunk_size: actions of a sample: those of the frame and of the following ones; a shorthand for
            ``delta_timestamps.action``.
        delta_timestamps: by feature, the seconds relative to the frame at which it is read.
        drop_n_last_frames: frames at the end of each episode that no sample begins at.
        tolerance_s: how far, in seconds, a frame of a video may be from the time that is asked for.

    Raises:
        ConfigError: an option that does not fit the data set.
        DataError: a file that is missing or malformed.
        MissingDependency: pyarrow, or PyAV where images are read, is not installed.
    """
    if not root:
        raise ConfigError(f"{_KEY}.root: name the folder of the data set, which holds meta/info.json.")
    info = DatasetInfo.load(Path(root).expanduser())
    deltas = {name: list(values) for name, values in (delta_timestamps or {}).items()}
    if chunk_size is not None:
        if chunk_size < 1 or "action" in deltas:
            raise ConfigError(f"{_KEY}.chunk_size: must be at least 1, and beside no delta_timestamps.action.")
        deltas["action"] = [step / info.fps for step in range(chunk_size)]
    held_out = info.check_episodes(val_episodes, f"{_KEY}.val_episodes")
    wanted = info.check_episodes(info.episodes if episodes is None else episodes, f"{_KEY}.episodes")
    training = [episode for episode in wanted if episode not in set(held_out)]

    def samples(numbers: Sequence[int]) -> FrameSamples:
        return FrameSamples(
            info, numbers, features=features, delta_timestamps=deltas, drop_n_last_frames=drop_n_last_frames,
            tolerance_s=tolerance_s,
        )  # fmt: skip

    train = samples(training)
    return SampleSplits(
        train=train,
        val=samples(held_out) if held_out else None,
        features={name: info.policy_features[name] for name in train.features if name in info.policy_features},
        statistics=read_statistics(info.root),
    )
