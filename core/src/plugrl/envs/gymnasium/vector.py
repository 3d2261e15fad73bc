"""A vector environment of gymnasium, whichever way it restarts its scenes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from plugrl.envs.config import EnvParams
from plugrl.envs.episodes import SceneOutcome
from plugrl.envs.episodic import EpisodicEnv
from plugrl.envs.gymnasium.config import GymnasiumParams
from plugrl.envs.gymnasium.spaces import SUCCESS_KEYS, ActionMap, ObservationMap, make, own_limit
from plugrl.errors import UserError


class GymnasiumVector(EpisodicEnv):
    """Scenes of a gymnasium :class:`VectorEnv`.

    Such an environment steps all of its scenes. One whose episode has ended is let run on within a chunk, unseen, and
    reset with the seed of its next episode after the chunk, by ``options["reset_mask"]``.

    Args:
        env: any vector environment whose ``reset`` honours ``reset_mask``, with ``autoreset_mode`` in its metadata.
        params: the number of scenes must be that of ``env``.

    Raises UserError for a vector environment that resets all scenes when one is to be reset.
    """

    def __init__(self, env: VectorEnv, params: EnvParams, *, max_episode_steps: int | None = None,
                 observations: Mapping[str, str] | None = None, normalise_actions: bool = False,
                 success_key: str | None = None, success_return: float | None = None,
                 task_description: str | None = None) -> None:  # fmt: skip
        if env.num_envs != params.num_envs:
            raise UserError(f"num_envs is {params.num_envs}, the vector environment has {env.num_envs} scenes.")
        self._env: VectorEnv | None = env
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._map = ActionMap(env.single_action_space, normalise_actions)
        self._fields = ObservationMap(env.single_observation_space, observations or {})
        self._success_key, self._success_return, self._task = success_key, success_return, task_description
        self._latest: list[Any] = [None] * params.num_envs
        self._sums = np.zeros(params.num_envs)
        self._over = np.zeros(params.num_envs, dtype=np.bool_)
        super().__init__(params, action_dim=self._map.dim, max_episode_steps=max_episode_steps)
        self._check_mask()

    @classmethod
    def made(cls, params: GymnasiumParams) -> GymnasiumVector:
        """Return the environment that a configuration names, with gymnasium's own sync or async vector environment."""
        build = partial(make, params.id, params, **params.kwargs)
        probe = build()
        limit = own_limit(probe)
        probe.close()
        kind = gymnasium.vector.SyncVectorEnv if params.vectorization == "sync" else gymnasium.vector.AsyncVectorEnv
        env = kind([build] * params.num_envs, autoreset_mode=AutoresetMode[params.autoreset_mode.upper()])
        try:
            return cls(env, params, max_episode_steps=limit, observations=params.observations,
                       normalise_actions=params.normalise_actions, success_key=params.success_key,
                       success_return=params.success_return, task_description=params.task_description)  # fmt: skip
        except BaseException:
            env.close()
            raise

    # ----------------------------------------------------------------- the simulator
    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Reset the scenes, each with its seed."""
        rows = self._reset(indices.tolist(), seeds)
        for index in indices.tolist():
            self._latest[index] = rows[index]
        self._sums[indices] = 0.0

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Step every scene and read what came of the active ones."""
        env = self._open
        if self._mode is AutoresetMode.DISABLED and self._over.any():
            over = np.flatnonzero(self._over)
            self._reset(over.tolist(), [0] * len(over))  # it takes no action before; nobody sees what it does
        batch = self._map.actions(actions)
        batched = tuple(batch) if isinstance(env.action_space, gymnasium.spaces.Tuple) else np.asarray(batch)
        observations, rewards, terminated, truncated, info = env.step(batched)
        self._over = terminated | truncated
        rows = self._rows(observations)
        success = self._successes(info)
        if self._mode is AutoresetMode.SAME_STEP and self._over.any():
            final = info["final_obs"]
            for index in np.flatnonzero(self._over).tolist():
                rows[index] = _row(final, index)
            success = np.where(self._over, self._successes(info.get("final_info", {})), success)
        for index in np.flatnonzero(active).tolist():
            self._latest[index] = rows[index]
        self._sums += np.where(active, rewards, 0.0)
        if self._success_return is not None:
            success |= self._sums >= self._success_return
        return SceneOutcome(rewards=rewards, terminated=terminated, success=success, truncated=truncated)

    def observe_scenes(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return the latest observations by field."""
        fields = self._fields.fields([self._latest[index] for index in indices.tolist()])
        if self._task is not None:
            fields["task_descriptions"] = [self._task] * len(indices)
        return fields

    def close(self) -> None:
        """Close the vector environment; calling it again does nothing."""
        if self._env is not None:
            self._env.close()
            self._env = None

    # ----------------------------------------------------------------- inside
    @property
    def _open(self) -> VectorEnv:
        if self._env is None:
            raise UserError("The environment is closed.")
        return self._env

    def _reset(self, indices: Sequence[int], seeds: Sequence[int]) -> list[Any]:
        count = self.num_envs
        given: list[int | None] = [None] * count
        mask = np.zeros(count, dtype=np.bool_)
        for index, seed in zip(indices, seeds, strict=True):
            given[index], mask[index] = int(seed), True
        self._over[mask] = False
        observations, _ = self._open.reset(seed=given, options={"reset_mask": mask} if not mask.all() else None)
        return self._rows(observations)

    def _rows(self, observations: Any) -> list[Any]:
        """Return the observation of each scene, with memory of its own: vector environments reuse theirs."""
        return [_copied(row) for row in iterate(self._open.observation_space, observations)]

    def _successes(self, info: Mapping[str, Any]) -> NDArray[np.bool_]:
        keys = SUCCESS_KEYS if self._success_key is None else (self._success_key,)
        found = np.zeros(self.num_envs, dtype=np.bool_)
        for key in keys:
            if key in info:
                found |= np.asarray(info[key]).astype(np.bool_)
        return found

    def _check_mask(self) -> None:
        """Reset one of the scenes and see that the others stay where they are."""
        if self.num_envs == 1:
            return
        before = self._fields.fields(self._reset(range(self.num_envs), range(self.num_envs)))
        after = self._fields.fields(self._reset([0], [self.num_envs]))
        if any(not np.array_equal(before[name][1:], after[name][1:]) for name in before):
            raise UserError(
                f"{self._open} resets all scenes when one is to be reset: its reset ignores options['reset_mask']. Use "
                "vectorization: none, or gymnasium's SyncVectorEnv or AsyncVectorEnv."
            )


def _copied(row: Any) -> Any:
    if isinstance(row, Mapping):
        return {key: _copied(value) for key, value in row.items()}
    if isinstance(row, tuple):
        return tuple(_copied(value) for value in row)
    return np.array(row)


def _row(final: Any, index: int) -> Any:
    """Return the last observation of a scene: an array of objects, or, of a dict observation, perhaps a dict of them.

    """
    if isinstance(final, Mapping):
        return {key: _row(value, index) for key, value in final.items() if not str(key).startswith("_")}
    return final[index]
