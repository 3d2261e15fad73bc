"""The contract of a vectorised environment: many simulated scenes that step together.

Most environments derive from :class:`plugrl.envs.episodic.EpisodicEnv`, which does everything here but simulate.

Observations are a mapping of fields: ``main_images`` and ``wrist_images`` uint8 [N, H, W, 3], ``extra_view_images``
uint8 [N, V, H, W, 3], ``states`` float32 [N, S], ``task_descriptions`` a list of N texts; tensors lie on the host and
are the receiver's: no later call writes into them. Actions are what the simulator carries out, float32.

Importing this imports no torch: a simulator in a process of its own works without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugrl.envs.episodes import EpisodeRecord, SceneLabel
from plugrl.errors import UnsupportedCapability

if TYPE_CHECKING:
    import torch

__all__ = ["ChunkResult", "EpisodeRecord", "SceneLabel", "StepResult", "VecEnv"]


@dataclass(frozen=True, kw_only=True)
class ChunkResult:
    """What came of a chunk of ``C`` actions in ``N`` scenes.

    An episode that ends within the chunk takes no more of its actions; the flag stands in the column where it ended.
    After the last column every scene that ended restarts, once, where the environment restarts scenes by itself.

    obs: what the policy sees next, each [N, ...]; of a scene that restarted, its first observation. rewards: float32
    [N, C], 0 where nothing was carried out. terminations: bool [N, C], the task ended. truncations: bool [N, C], the
    time ran out; never both. executed: bool [N, C], the action was carried out. success_once, success_at_end: bool [N],
    of the running episode or the one just ended: solved at any step so far, and at the latest step. final_obs: the
    observations before any restart, [N, ...]; rows of scenes that did not end are those of ``obs``; None when none
    ended. episodes: what is over since the last call, dropped ones included. lost: bool [N], the simulator of the scene
    died: its episode is dropped, nothing of the chunk counts for it, and ``obs`` begins its next episode. info: what
    the environment has to say besides.
    """

    obs: Mapping[str, Any]
    rewards: torch.Tensor
    terminations: torch.Tensor
    truncations: torch.Tensor
    executed: torch.Tensor
    success_once: torch.Tensor
    success_at_end: torch.Tensor
    lost: torch.Tensor
    final_obs: Mapping[str, Any] | None = None
    episodes: tuple[EpisodeRecord, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dones(self) -> torch.Tensor:
        """Bool [N, C]: the episode ended with this action, one way or the other."""
        return self.terminations | self.truncations


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What came of one action in ``N`` scenes: a :class:`ChunkResult` without the column, so [N] where that has [N, C].
    """  # fmt: skip

    obs: Mapping[str, Any]
    rewards: torch.Tensor
    terminations: torch.Tensor
    truncations: torch.Tensor
    executed: torch.Tensor
    success_once: torch.Tensor
    success_at_end: torch.Tensor
    lost: torch.Tensor
    final_obs: Mapping[str, Any] | None = None
    episodes: tuple[EpisodeRecord, ...] = ()
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

    @property
    @abstractmethod
    def action_dim(self) -> int:
        """Numbers in one action."""

    @property
    @abstractmethod
    def max_episode_steps(self) -> int | None:
        """Actions after which an episode is truncated; None where the simulator alone knows."""

    @property
    @abstractmethod
    def seeds(self) -> tuple[int, ...]:
        """Seed of the episode in each scene; ``reset(seed=env.seeds)`` begins the same episodes once more."""

    @abstractmethod
    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes in the scenes ``indices`` (default: all) and return ``(obs of all scenes, info)``.

        A sequence of seeds holds one for each scene that starts; one seed is spread: scene ``i`` has ``seed + i``; None
        goes on with the seed that follows in each scene. The same seed gives the same episode, in whatever scene, so
        scenes that get the same one begin alike. An episode that was running is forgotten.
        """

    @abstractmethod
    def chunk_step(self, actions: torch.Tensor) -> ChunkResult:
        """Apply a chunk of actions, float32 [N, C, action_dim], one after the other."""

    def step(self, actions: torch.Tensor) -> StepResult:
        """Apply one action per scene, float32 [N, action_dim]: a chunk of one."""
        result = self.chunk_step(actions[:, None])
        return StepResult(
            obs=result.obs,
            rewards=result.rewards[:, 0],
            terminations=result.terminations[:, 0],
            truncations=result.truncations[:, 0],
            executed=result.executed[:, 0],
            success_once=result.success_once,
            success_at_end=result.success_at_end,
            lost=result.lost,
            final_obs=result.final_obs,
            episodes=result.episodes,
            info=result.info,
        )

    def expert_actions(self) -> torch.Tensor:
        """Return what an expert would do next in each scene, float32 [N, action_dim].

        Raises UnsupportedCapability where there is none.
        """
        raise UnsupportedCapability(f"{type(self).__name__} has no expert to take demonstrations from.")

    def render(self, index: int) -> torch.Tensor:
        """Return a picture of scene ``index`` for people to look at, uint8 [H, W, 3].

        Raises UnsupportedCapability where there is none.
        """
        raise UnsupportedCapability(f"{type(self).__name__} renders no pictures.")

    def offload(self) -> None:
        """Give device memory back while other components use the device; by default there is none to give."""
        return None

    def onload(self) -> None:
        """Take back what :meth:`offload` gave away."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it again does nothing."""
