"""Seeds of a process's global generators: different on every rank, the same on every run."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase


def rank_seed(seed: int, dp_rank: int, step: int | None = None) -> int:
    """Return the seed of one data-parallel rank, below 2**63.

    ``step`` tells a rank that joins a resumed run from the one that began at the start.
    """
    text = f"plugrl-{seed}-{dp_rank}" if step is None else f"plugrl-{seed}-{dp_rank}-{step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_rank(platform: PlatformBase, seed: int, dp_rank: int, step: int | None = None) -> None:
    """Seed Python's, numpy's, torch's and the device's generators from ``(seed, dp_rank[, step])``.

    Dropout and noise then differ between ranks. Models are built before, with the bare seed, alike on all ranks.
    """
    import torch

    value = rank_seed(seed, dp_rank, step)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value % 2**32)
    torch.manual_seed(value)
    platform.manual_seed_all(value)
