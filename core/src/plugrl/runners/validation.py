"""Measuring a policy on the held-out prompts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugrl.config.schema import RunConfig
from plugrl.models.processor import TextProcessor
from plugrl.rewards.manager import RewardManager
from plugrl.rollouts.base import SamplingParams
from plugrl.runners.experience import Experience, collect, infos_for_validation
from plugrl.runners.prompts import PromptData
from plugrl.tracking.validation import validation_metrics
from plugrl.workers.groups import RolloutGroup

SAMPLES = 8
"""Held-out generations in the record of each validation, unless ``trainer.log_val_generations`` asks for more."""


@dataclass(frozen=True)
class Share:
    """A share of responses, with its 95 % confidence interval."""

    count: int
    total: int

    @property
    def value(self) -> float:
        """The share itself."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval at 95 %. Source: Wilson 1927, doi:10.1080/01621459.1927.10502953."""
        z, n, p = 1.959964, self.total, self.value
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} ({self.count}/{self.total}, 95 % interval {low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class Validation:
    """One measurement: metrics by name, samples for the record, and the shares a person asks for.

    accuracy: responses whose ``acc`` is 1. formatted: responses in which the reward could read an answer, None when
    the reward does not tell.
    """

    step: int
    metrics: Mapping[str, float]
    accuracy: Share
    formatted: Share | None
    seconds: float
    samples: list[dict[str, Any]] = field(default_factory=list)


def sampling_params(config: RunConfig, processor: TextProcessor, *, greedy: bool = False) -> SamplingParams:
    """Return how training samples are drawn; ``greedy`` gives the one most likely response."""
    rollout = config.rollout
    endless = rollout.ignore_eos and not greedy
    return SamplingParams(
        n=1 if greedy else rollout.n,
        max_new_tokens=config.data.max_response_length,
        temperature=0.0 if greedy else rollout.temperature,
        top_k=-1 if greedy else rollout.top_k,
        top_p=1.0 if greedy else rollout.top_p,
        stop_token_ids=() if endless else processor.eos_token_ids,
        ignore_eos=endless,
    )


def validation_params(config: RunConfig, processor: TextProcessor) -> SamplingParams:
    """Return how held-out prompts are answered."""
    values = config.rollout.val_kwargs
    if not values.do_sample or values.temperature == 0:
        return sampling_params(config, processor, greedy=True)
    return SamplingParams(
        n=values.n,
        max_new_tokens=config.data.max_response_length,
        temperature=values.temperature,
        top_k=values.top_k,
        top_p=values.top_p,
        stop_token_ids=processor.eos_token_ids,
    )


def validate(
    config: RunConfig,
    rollout: RolloutGroup,
    data: PromptData,
    processor: TextProcessor,
    reward: RewardManager,
    step: int,
    progress: Callable[[str, int, int], None],
) -> Validation:
    """Answer every held-out prompt and judge the answers; ``progress`` is told of prompts done and their number."""
    start = time.perf_counter()
    params = validation_params(config, processor)
    batches: list[Experience] = []
    done = 0
    for batch in data.validation_batches():
        batches.append(_answer(batch, rollout, processor, reward, params))
        done += len(batch.prompts)
        progress("validating", done, len(data.val.records))
    infos = [info for experience in batches for info in infos_for_validation(experience.results)]
    records = [record for experience in batches for record in experience.records]
    prompt_ids = [(part, group) for part, experience in enumerate(batches) for group in experience.group_ids]
    metrics = validation_metrics([record.data_source for record in records], prompt_ids, infos)
    samples = batches[0].sample_rows(max(SAMPLES, config.trainer.log_val_generations))
    return Validation(
        step=step,
        metrics=metrics,
        accuracy=_share(infos, "acc"),
        formatted=_share(infos, "parsed") if all("parsed" in info for info in infos) else None,
        seconds=time.perf_counter() - start,
        samples=[{**row, "split": "val"} for row in samples],
    )


def _answer(
    batch: Any, rollout: RolloutGroup, processor: TextProcessor, reward: RewardManager, params: SamplingParams
) -> Experience:
    completions = rollout.generate(batch.prompts, params, batch.seeds)
    experience = collect(batch.records, batch.prompts, completions, processor)
    experience.add_scores(
        reward.score_batch(
            experience.texts,
            [record.ground_truth for record in experience.records],
            [record.extra_info for record in experience.records],
        )
    )
    return experience


def _share(infos: list[Mapping[str, Any]], name: str) -> Share:
    return Share(sum(float(info[name]) >= 1.0 for info in infos), len(infos))
