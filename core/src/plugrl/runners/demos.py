"""`plugrl demos`: from an environment's expert to a data set of its successful episodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.config.schema import EnvConfig, RunConfig
from plugrl.data.lerobot.statistics import STATISTICS_FILE, norm_stats
from plugrl.data.lerobot.writer import DatasetWriter
from plugrl.data.observations import ACTION, STATE
from plugrl.envs import VecEnv, make_env
from plugrl.envs.factory import env_schema
from plugrl.errors import DataError
from plugrl.runners.demonstrations import Collector, Demonstration, Tally
from plugrl.runners.validation import Share
from plugrl.tracking.headline import duration

RECORD_FILE = "meta/plugrl_demos.json"
"""Where demonstrations came from: environment and its settings, seeds, attempts."""

MOST_SCENES = 64
"""Scenes at most that a collection keeps busy: more would only wait for the slowest."""


@dataclass(frozen=True)
class Collected:
    """What was collected: the folder, the tally, actions in all and seconds."""

    path: Path
    tally: Tally
    frames: int
    seconds: float

    def __str__(self) -> str:
        share = Share(self.tally.kept, max(self.tally.attempts - self.tally.dropped, 1))
        return (
            f"{self.tally.kept} demonstrations with {self.frames} actions in {duration(self.seconds)}: {self.path}\n"
            f"the expert solved {share}"
        )


def run_demos(config: RunConfig, say: Callable[[str], None] = print) -> Collected:
    """Collect ``demos.episodes`` demonstrations in the scenes of ``env.demos`` and write them to ``demos.path``.

    Raises UserError when the folder exists, the environment has no expert, or the expert fails too often.
    """
    began = time.monotonic()
    demos, split = config.demos, scenes_of(config)
    path = Path(demos.path)
    if path.exists():
        raise DataError(f"demos.path: {path} exists already. Remove it, or give another folder.")
    name = demos.name or split.env_type

    def told(tally: Tally) -> None:
        spent = time.monotonic() - began
        left = f", left {duration(spent / tally.kept * (demos.episodes - tally.kept))}" if tally.kept else ""
        say(f"demonstrations {tally.kept}/{demos.episodes} ({tally.failed} failed, {tally.dropped} dropped){left}")

    env = build_scenes(config, split)
    try:
        with DatasetWriter(path, demos.fps, split.env_type) as writer:
            kept: list[Demonstration] = []
            collector = Collector(
                env,
                episodes=demos.episodes,
                first_seed=demos.seed,
                noise=demos.noise,
                max_attempts=demos.max_attempts,
            )

            def keep(demonstration: Demonstration) -> None:
                writer.add(demonstration.frames, demonstration.task)
                kept.append(Demonstration({}, demonstration.task, demonstration.seed, demonstration.return_))

            tally = collector.run(keep, told)
            writer.write_json(STATISTICS_FILE, {name: _scales(writer)})
            writer.write_json(RECORD_FILE, _record(config, split, name, tally, kept))
            frames = writer.frames
    finally:
        env.close()
    return Collected(path, tally, frames, time.monotonic() - began)


def scenes_of(config: RunConfig) -> EnvConfig:
    """Return the section of the environments to collect in: ``env.demos``, else ``env.train``."""
    split = config.env.demos or config.env.train
    assert split is not None, "checked when the configuration was loaded"
    return split


def build_scenes(config: RunConfig, split: EnvConfig) -> VecEnv:
    """Build the scenes, which wait after an episode for the seed of the next."""
    params = split.init_params
    given: dict[str, Any] = params.model_dump() if hasattr(params, "model_dump") else dict(params)
    settings = {
        **given,
        "num_envs": min(split.total_num_envs, config.demos.episodes, MOST_SCENES),
        "max_episode_steps": split.max_episode_steps,
        "auto_reset": False,
        "ignore_terminations": split.ignore_terminations,
    }
    return make_env(split.env_type, env_schema(split.env_type).model_validate(settings))


def _scales(writer: DatasetWriter) -> dict[str, Any]:
    actions = writer.numbers(ACTION)
    assert actions is not None
    return norm_stats(actions, writer.numbers(STATE), writer.episodes)


def _record(
    config: RunConfig, split: EnvConfig, name: str, tally: Tally, kept: list[Demonstration]
) -> dict[str, Any]:
    return {
        "env_type": split.env_type,
        "settings": split.model_dump(mode="json"),
        "name": name,
        "episodes": tally.kept,
        "attempts": tally.attempts,
        "failed": tally.failed,
        "dropped": tally.dropped,
        "first_seed": config.demos.seed,
        "noise": config.demos.noise,
        "seeds": [demonstration.seed for demonstration in kept],
        "returns": [demonstration.return_ for demonstration in kept],
    }
