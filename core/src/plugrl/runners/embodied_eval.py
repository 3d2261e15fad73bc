"""Measuring a policy in the environments of `env.eval`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from plugrl.config.schema import RunConfig
from plugrl.envs.base import EpisodeRecord
from plugrl.runners.embodied_episodes import episode_metrics
from plugrl.runners.embodied_summary import interval_metrics
from plugrl.runners.embodied_tasks import part_metrics
from plugrl.workers.embodied.filming import FilmOrder
from plugrl.workers.embodied.groups import ActingGroup, EnvGroup


@dataclass(frozen=True)
class EmbodiedValidation:
    """One measurement: the episodes in the order of their scenes, and their metrics."""

    step: int
    episodes: tuple[EpisodeRecord, ...]
    metrics: dict[str, float]
    seconds: float


def evaluate(
    config: RunConfig, env: EnvGroup, rollout: ActingGroup, step: int, videos: Path | None = None
) -> EmbodiedValidation:
    """Let the policy, with the weights that the rollout has, go through the scenes of the evaluation.

    ``videos`` is the folder for those of ``env.eval.videos`` scenes.
    """
    began = time.perf_counter()
    count = 0 if config.env.eval is None else config.env.eval.videos
    order = FilmOrder(str(videos), count, f"step{step:06d}_") if count and videos is not None else None
    reports = rollout.evaluate(env, order)
    episodes = sorted((record for report in reports for record in report.episodes), key=lambda item: item.index)
    metrics = episode_metrics(episodes, "eval") | interval_metrics(episodes, "eval") | part_metrics(episodes, "eval")
    return EmbodiedValidation(step, tuple(episodes), metrics, time.perf_counter() - began)
