"""Measuring a policy in the environments of `env.eval`."""

from __future__ import annotations

import time
from dataclasses import dataclass

from plugrl.envs.base import EpisodeRecord
from plugrl.runners.embodied_episodes import episode_metrics
from plugrl.runners.embodied_summary import interval_metrics
from plugrl.workers.embodied.groups import ActingGroup, EnvGroup


@dataclass(frozen=True)
class EmbodiedValidation:
    """One measurement: the episodes in the order of their scenes, and their metrics."""

    step: int
    episodes: tuple[EpisodeRecord, ...]
    metrics: dict[str, float]
    seconds: float


def evaluate(env: EnvGroup, rollout: ActingGroup, step: int) -> EmbodiedValidation:
    """Let the policy, with the weights that the rollout has, go through the scenes of the evaluation."""
    began = time.perf_counter()
    reports = rollout.evaluate(env)
    episodes = sorted((record for report in reports for record in report.episodes), key=lambda item: item.index)
    metrics = episode_metrics(episodes, "eval") | interval_metrics(episodes, "eval")
    return EmbodiedValidation(step, tuple(episodes), metrics, time.perf_counter() - began)
