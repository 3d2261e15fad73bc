"""Validation metrics: mean, best and majority of several samples to a prompt, by data source, under verl's names."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from statistics import fmean, pstdev
from typing import Any

DRAWS = 1000
"""Bootstrap draws of the majority of n; best and worst of n have a closed form."""

SEED = 42
"""Seed of these draws."""

Sample = tuple[float, str | None]
"""(value, prediction) of one response."""


def validation_metrics(
    data_sources: Sequence[str],
    prompt_ids: Sequence[Hashable],
    infos: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
    """Summarise a validation, one entry a response.

    Args:
        data_sources: name of the data set of each response.
        prompt_ids: prompt of each response; responses of a prompt may stand anywhere.
        infos: numbers to report by name (``reward``, ``acc``, ...; others are passed over) and ``pred``, the answer as
            text, by which majorities are formed.

    Returns:
        For each source and number, averaged over prompts with N responses: ``mean@N``, and from two responses on
        ``std@N``, and for n = 2, 4, ... N ``best@n/{mean,std}``, ``worst@n/{mean,std}`` and, with predictions,
        ``maj@n/{mean,std}``. ``mean@N``, ``best@N/mean`` and ``maj@N/mean`` of ``acc`` (without it ``reward``), at the
        largest N, go under ``val-core/``, the rest under ``val-aux/``.
    """
    groups: dict[str, dict[Hashable, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for source, prompt, info in zip(data_sources, prompt_ids, infos, strict=True):
        groups[source][prompt].append(info)
    result: dict[str, float] = {}
    for source, prompts in groups.items():
        names = _numeric_names(prompts)
        core = "acc" if "acc" in names else "reward"
        largest = max(len(group) for group in prompts.values())
        for name in names:
            for key, value in _summarise(prompts, name).items():
                wanted = key in (f"mean@{largest}", f"best@{largest}/mean", f"maj@{largest}/mean")
                section = "val-core" if name == core and wanted else "val-aux"
                result[f"{section}/{source}/{name}/{key}"] = value
    return result


def _numeric_names(prompts: Mapping[Hashable, Sequence[Mapping[str, Any]]]) -> list[str]:
    infos = [info for group in prompts.values() for info in group]
    shared = set(infos[0]).intersection(*infos)
    return sorted(name for name in shared if all(isinstance(info[name], int | float) for info in infos))


def _summarise(prompts: Mapping[Hashable, Sequence[Mapping[str, Any]]], name: str) -> dict[str, float]:
    """Average what :func:`_describe` says of each prompt over the prompts that have it."""
    collected: dict[str, list[float]] = defaultdict(list)
    for group in prompts.values():
        samples = [(float(info[name]), info.get("pred")) for info in group]
        for key, value in _describe(samples).items():
            collected[key].append(value)
    return {key: fmean(values) for key, values in collected.items()}


def _describe(samples: Sequence[Sample]) -> dict[str, float]:
    values = [value for value, _ in samples]
    count = len(samples)
    result = {f"mean@{count}": fmean(values)}
    if count == 1:
        return result
    result[f"std@{count}"] = pstdev(values)
    for size in _sizes(count):
        result |= _extreme(values, size, f"best@{size}", best=True)
        result |= _extreme(values, size, f"worst@{size}", best=False)
        if all(prediction is not None for _, prediction in samples):
            result |= _majority(samples, size, f"maj@{size}")
    return result


def _sizes(count: int) -> list[int]:
    """Return 2, 4, 8, ... below ``count``, and ``count``."""
    sizes = []
    size = 2
    while size < count:
        sizes.append(size)
        size *= 2
    return [*sizes, count]


def _extreme(values: Sequence[float], size: int, name: str, *, best: bool) -> dict[str, float]:
    """Return mean and std of the best or worst of ``size`` values drawn with replacement, exactly."""
    ranked = sorted(values, reverse=not best)
    count = len(ranked)
    # The i-th of the ranked values is the extreme one if all draws are among the first i and not all among i - 1.
    chances = [((rank + 1) / count) ** size - (rank / count) ** size for rank in range(count)]
    mean = sum(value * chance for value, chance in zip(ranked, chances, strict=True))
    square = sum((value - mean) ** 2 * chance for value, chance in zip(ranked, chances, strict=True))
    return {f"{name}/mean": mean, f"{name}/std": sqrt(square)}


def _majority(samples: Sequence[Sample], size: int, name: str) -> dict[str, float]:
    """Return mean and std of the value of the most frequent of ``size`` predictions, over bootstrap draws.

    Of equally frequent predictions the one drawn first wins; a prediction has the value of its first sample.
    """
    values: dict[str | None, float] = {}
    for value, prediction in samples:
        values.setdefault(prediction, value)
    generator = random.Random(SEED)
    predictions = [prediction for _, prediction in samples]
    draws = DRAWS if len(values) > 1 else 1
    drawn = [values[Counter(generator.choices(predictions, k=size)).most_common(1)[0][0]] for _ in range(draws)]
    return {f"{name}/mean": fmean(drawn), f"{name}/std": pstdev(drawn)}
