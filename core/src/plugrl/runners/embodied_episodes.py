"""What finished episodes say: success, returns, lengths."""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.envs.base import EpisodeRecord


def episode_metrics(records: Sequence[EpisodeRecord], prefix: str) -> dict[str, float]:
    """Return means over episodes under ``prefix`` (``env`` or ``eval``); dropped ones are counted and left out.

    Without a finished episode only the counts are there.
    """
    finished = [record for record in records if not record.dropped]
    dropped = len(records) - len(finished)
    metrics = {f"{prefix}/num_trajectories": float(len(finished)), f"{prefix}/num_dropped": float(dropped)}
    if not finished:
        return metrics
    count = len(finished)
    once = sum(record.success_once for record in finished) / count
    at_end = sum(record.success_at_end for record in finished) / count
    steps = sum(record.length for record in finished)
    earned = sum(record.return_ for record in finished)
    return metrics | {
        f"{prefix}/success_once": once,
        f"{prefix}/fail_once": 1.0 - once,
        f"{prefix}/success_at_end": at_end,
        f"{prefix}/fail_at_end": 1.0 - at_end,
        f"{prefix}/return": earned / count,
        f"{prefix}/episode_len": steps / count,
        f"{prefix}/reward": earned / steps if steps else 0.0,
    }
