"""Success by task and by split: shares, and the names under which they are metrics.

A task ``pick up the cup`` is measured as ``eval/success_once/pick_up_the_cup``, a split ``unseen`` as
``eval/success_once/split.unseen``; no name of a task has a dot.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from plugrl.envs.base import EpisodeRecord
from plugrl.runners.validation import Share

SPLIT = "split."
MOST_TASKS = 200
"""With more tasks than this, as instructions that differ with every episode give, there are no metrics by task."""

_LONGEST = 60


def success_by_part(records: Iterable[EpisodeRecord]) -> dict[str, Share]:
    """Return the share of episodes solved at any step, by the metric's name of each task and of each split.

    Tasks come first, each sort in the order of its names; one alone says nothing beside the total and is left out.
    Dropped episodes do not count.
    """
    finished = [record for record in records if not record.dropped]
    tasks = _shares((record.label.task, record.success_once) for record in finished)
    splits = _shares((record.label.split, record.success_once) for record in finished)
    found: dict[str, Share] = {}
    if 1 < len(tasks) <= MOST_TASKS:
        found |= dict(zip(metric_names(tuple(tasks)), tasks.values(), strict=True))
    if len(splits) > 1:
        names = [f"{SPLIT}{name}" for name in metric_names(tuple(splits))]
        found |= dict(zip(names, splits.values(), strict=True))
    return found


def part_metrics(records: Iterable[EpisodeRecord], prefix: str) -> dict[str, float]:
    """Return success, its 95 % interval and the number of episodes of each task and split."""
    found: dict[str, float] = {}
    for name, share in success_by_part(records).items():
        low, high = share.interval
        found |= {
            f"{prefix}/success_once/{name}": share.value,
            f"{prefix}/success_once_low/{name}": low,
            f"{prefix}/success_once_high/{name}": high,
            f"{prefix}/num_trajectories/{name}": float(share.total),
        }
    return found


def metric_names(texts: Sequence[str]) -> list[str]:
    """Return a name for each text, of letters, digits, ``_`` and ``-``; different texts never have the same.

    What would be too long is cut, and what would be alike gets a mark that depends on the text alone.
    """
    plain = [re.sub(r"[^a-z0-9-]+", "_", text.lower()).strip("_") for text in texts]
    return [
        name if name and len(name) <= _LONGEST and plain.count(name) == 1 else f"{name[:_LONGEST]}_{_mark(text)}"
        for name, text in zip(plain, texts, strict=True)
    ]


def _mark(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def _shares(outcomes: Iterable[tuple[str, bool]]) -> Mapping[str, Share]:
    """Return the share of each text, in their order; empty texts are left out."""
    counts: dict[str, list[bool]] = {}
    for text, solved in outcomes:
        if text:
            counts.setdefault(text, []).append(solved)
    return {text: Share(sum(counts[text]), len(counts[text])) for text in sorted(counts)}
