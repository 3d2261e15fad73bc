"""The contract of a vectorised environment: many simulated scenes that step together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What came of one step in ``N`` scenes.

    obs: what the policy sees next, by field (``main_images``, ``states``, ``task_descriptions``, ...), each [N, ...];
    of a scene that restarted, its first observation. rewards: float [N]. terminations: bool [N], the task ended.
    truncations: bool [N], the time ran out. final_obs: the last observations of scenes that ended, [N, ...], None when
    none did. success_once, success_at_end: bool [N], of the running episode or the one just ended.
    """

    obs: Mapping[str, Any]
    rewards: torch.Tensor
    terminations: torch.Tensor
    truncations: torch.Tensor
    success_once: torch.Tensor
    success_at_end: torch.Tensor
    final_obs: Mapping[str, Any] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dones(self) -> torch.Tensor:
        """Bool [N]: the episode ended, one way or the other."""
        return self.terminations | self.truncations


class VecEnv(ABC):
    """``num_envs`` scenes of one simulator that step together."""

    @property
    @abstractmethod
    def num_envs(self) -> int:
        """Number of scenes."""

    @abstractmethod
    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes in the scenes ``indices`` (default: all) and return ``(obs of all scenes, info)``.

        One seed is spread over the scenes, a sequence holds one per scene; the same seed gives the same episode.
        """

    @abstractmethod
    def step(self, actions: Any) -> StepResult:
        """Apply one action per scene, [N, action_dim]."""

    def chunk_step(self, actions: torch.Tensor) -> list[StepResult]:
        """Apply a chunk of actions [N, C, action_dim], one after the other, and return C results."""
        return [self.step(actions[:, position]) for position in range(actions.shape[1])]

    def offload(self) -> None:
        """Give device memory back while other components use the device; by default there is none to give."""
        return None

    def onload(self) -> None:
        """Take back what :meth:`offload` gave away."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it again does nothing."""
