"""A chunk's actions and results as NumPy arrays, and their way to tensors and back. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.base import ChunkResult
from plugrl.envs.episodes import EpisodeRecord
from plugrl.envs.observations import as_tensors
from plugrl.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(kw_only=True)  # not frozen: that costs a microsecond a step
class ChunkArrays:
    """A :class:`plugrl.envs.base.ChunkResult` in NumPy."""

    obs: dict[str, Any]
    final_obs: dict[str, Any] | None
    rewards: NDArray[np.float32]
    executed: NDArray[np.bool_]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    success_once: NDArray[np.bool_]
    success_at_end: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    episodes: tuple[EpisodeRecord, ...] = ()

    def result(self) -> ChunkResult:
        """Return the same as tensors, on the same memory."""
        import torch

        return ChunkResult(
            obs=as_tensors(self.obs),
            final_obs=None if self.final_obs is None else as_tensors(self.final_obs),
            rewards=torch.from_numpy(self.rewards),
            executed=torch.from_numpy(self.executed),
            terminations=torch.from_numpy(self.terminations),
            truncations=torch.from_numpy(self.truncations),
            success_once=torch.from_numpy(self.success_once),
            success_at_end=torch.from_numpy(self.success_at_end),
            lost=torch.from_numpy(self.lost),
            episodes=self.episodes,
        )


def checked_actions(actions: torch.Tensor, num_envs: int, action_dim: int) -> NDArray[np.float32]:
    """Return actions [N, C, D] as NumPy float32. Raises UserError for another shape or a value that is not finite."""
    shape = tuple(actions.shape)
    if len(shape) != 3 or shape[0] != num_envs or shape[1] < 1 or shape[2] != action_dim:
        raise UserError(
            f"The environment takes actions [scenes, chunk, action_dim] = [{num_envs}, C, {action_dim}], not "
            f"{list(shape)}. The policy's action_dim must be {action_dim}."
        )
    values: NDArray[np.float32] = actions.detach().cpu().numpy().astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise UserError("The policy gave an action that is not finite: its weights or its inputs are broken.")
    return values
