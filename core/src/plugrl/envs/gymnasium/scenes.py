"""Environments of gymnasium side by side, stepped one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.episodes import SceneOutcome
from plugrl.envs.episodic import EpisodicEnv
from plugrl.envs.gymnasium.config import GymnasiumParams
from plugrl.envs.gymnasium.spaces import ActionMap, ObservationMap, as_picture, is_solved, make, own_limit
from plugrl.errors import UnsupportedCapability


class GymnasiumScenes(EpisodicEnv):
    """One environment of gymnasium for each scene; only those that shall move are stepped."""

    def __init__(self, params: GymnasiumParams) -> None:
        options: dict[str, Any] = {"render_mode": "rgb_array", **params.kwargs} if params.pixels else params.kwargs
        self._envs = [make(params.id, params, **options) for _ in range(params.num_envs)]
        first = self._envs[0]
        self._actions = ActionMap(first.action_space, params.normalise_actions)
        self._fields = ObservationMap(first.observation_space, params.observations)
        self._options = params
        self._latest: list[Any] = [None] * params.num_envs
        self._sums = np.zeros(params.num_envs)
        super().__init__(params, action_dim=self._actions.dim, max_episode_steps=own_limit(first))

    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Reset the environments, each with its seed."""
        for index, seed in zip(indices.tolist(), seeds, strict=True):
            self._latest[index], _ = self._envs[index].reset(seed=int(seed))
            self._sums[index] = 0.0

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Step the active scenes."""
        count, key, latest, envs = len(active), self._options.success_key, self._latest, self._envs
        rewards, ends, cuts, solved = [0.0] * count, [False] * count, [False] * count, [False] * count
        chosen = self._actions.actions(actions)
        for index, moves in enumerate(active.tolist()):
            if moves:
                latest[index], rewards[index], ends[index], cuts[index], info = envs[index].step(chosen[index])
                if info or key is not None:
                    solved[index] = is_solved(info, key)
        success = np.array(solved, dtype=np.bool_)
        earned = np.array(rewards, dtype=np.float64)
        if self._options.success_return is not None:
            self._sums += earned
            success |= self._sums >= self._options.success_return
        return SceneOutcome(rewards=earned, terminated=np.array(ends, dtype=np.bool_), success=success,
                            truncated=np.array(cuts, dtype=np.bool_))  # fmt: skip

    def observe_scenes(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return the latest observations by field."""
        chosen = indices.tolist()
        fields = self._fields.fields([self._latest[index] for index in chosen])
        if self._options.pixels:
            fields["main_images"] = np.stack([as_picture(self._envs[index].render()) for index in chosen])
        if self._options.task_description is not None:
            fields["task_descriptions"] = [self._options.task_description] * len(chosen)
        return fields

    def render_scene(self, index: int) -> NDArray[np.uint8]:
        """Return what the environment renders. Raises UnsupportedCapability without `render_mode: rgb_array`."""
        if self._envs[index].render_mode != "rgb_array":
            raise UnsupportedCapability(
                f"{self._options.id} renders no pictures: give kwargs: {{render_mode: rgb_array}}, or pixels: true."
            )
        return as_picture(self._envs[index].render())

    def close(self) -> None:
        """Close the environments; calling it again does nothing."""
        while self._envs:
            self._envs.pop().close()
