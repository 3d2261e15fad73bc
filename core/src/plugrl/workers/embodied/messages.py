"""What an environment worker tells the worker that acts: observations, and what came of the chunk before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugrl.envs.base import ChunkResult

Observation = Mapping[str, Any]
"""Fields of an observation: tensors [N, ...] or lists of N."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a chunk in the N scenes of a slice.

    rewards float [N, C], terminations, truncations, executed bool [N, C], lost bool [N], as
    :class:`plugrl.envs.base.ChunkResult` has them. final_rows: int64 [K], scenes whose episode was cut off, and
    final_obs: their last observations [K, ...], of which values are wanted; None without any.
    """

    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    executed: Tensor
    lost: Tensor
    final_rows: Tensor | None = None
    final_obs: Observation | None = None

    @classmethod
    def of(cls, result: ChunkResult, *, wanted: Tensor) -> Outcome:
        """Take what training needs of a result; ``wanted`` bool [N]: scenes of whose last state a value is wanted."""
        rows = wanted.nonzero().flatten() if result.final_obs is not None else wanted.new_empty(0, dtype=torch.long)
        return cls(
            rewards=result.rewards,
            terminations=result.terminations,
            truncations=result.truncations,
            executed=result.executed,
            lost=result.lost,
            final_rows=rows if len(rows) else None,
            final_obs=rows_of(result.final_obs, rows) if len(rows) and result.final_obs is not None else None,
        )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the policy is to act on next in slice ``index``.

    epoch, chunk: the pass, and how many chunks of it are over. outcome: of the chunk before; None at first. is_last:
    the pass is over, and no actions are wanted. rollout: which of the policy's workers this is for.
    """

    index: int
    epoch: int
    chunk: int
    obs: Observation
    outcome: Outcome | None = None
    is_last: bool = False


def rows_of(obs: Observation, rows: Tensor | Sequence[int]) -> dict[str, Any]:
    """Return some scenes of an observation."""
    indices = rows.tolist() if isinstance(rows, Tensor) else list(rows)
    return {
        name: value[indices] if isinstance(value, Tensor) else [value[row] for row in indices]
        for name, value in obs.items()
        if value is not None
    }
