"""An environment whose scenes live in simulator processes: the same contract, and a simulator may die."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.arrays import ChunkArrays, checked_actions
from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.envs.config import EnvParams
from plugrl.envs.episodes import EpisodeRecord, next_seed, spread_seeds
from plugrl.envs.observations import as_tensors, joined, with_rows
from plugrl.envs.process.group import SceneGroup
from plugrl.envs.process.link import Simulator, end_all
from plugrl.errors import PlugRLError, UserError

if TYPE_CHECKING:
    import torch


class ProcessEnv(VecEnv):
    """The scenes of ``build(params)``, spread over ``params.processes`` processes.

    A process that dies, raises or does not answer in time is ended and started again. The episodes that ran in it are
    dropped: the next result lists them with ``dropped=True``, says ``lost`` for their scenes, counts no action of the
    chunk for these, and shows the beginning of their next episodes, with the seeds that follow. All other scenes go on
    as if nothing had happened. After ``params.max_failures`` failures in a row of one process everything is closed
    and SimulatorFailed raised, with what happened each time.

    Args:
        build: class or function ``(params)`` that makes an :class:`EpisodicEnv`, at the top of an importable module.
        environment: variables laid over those of this process.

    Raises what the environment refuses to be built with, and SimulatorFailed when it cannot be started.
    """

    def __init__(self, build: Callable[[Any], Any], params: EnvParams,
                 environment: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self._params = params
        self._simulators: list[Simulator] = []
        self._finalizer = weakref.finalize(self, end_all, self._simulators, 0.0)
        self._groups: list[SceneGroup] = []
        self._obs: dict[str, Any] = {}
        self._dropped: list[EpisodeRecord] = []
        first = 0
        for index, size in enumerate(shares(params.num_envs, max(params.processes, 1))):
            part = params.model_copy(update={"num_envs": size, "processes": 0})
            self._groups.append(SceneGroup(index, first, part, build, dict(environment or {}), self._simulators))
            first += size
        try:
            for group in self._groups:
                group.start()
            ready = [group.built() for group in self._groups]
        except BaseException:
            self.close()
            raise
        self._action_dim, self._limit = ready[0].action_dim, ready[0].max_episode_steps

    # ----------------------------------------------------------------- what is there
    @property
    def num_envs(self) -> int:
        """Number of scenes."""
        return self._params.num_envs

    @property
    def action_dim(self) -> int:
        """Numbers in one action."""
        return self._action_dim

    @property
    def max_episode_steps(self) -> int | None:
        """Actions after which an episode is truncated; None where the simulator alone knows."""
        return self._limit

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seed of the episode in each scene."""
        return tuple(seed for group in self._groups for seed in group.seeds)

    @property
    def pids(self) -> tuple[int, ...]:
        """The simulator processes, in the order of their scenes."""
        return tuple(group.pid for group in self._groups)

    # ----------------------------------------------------------------- the contract
    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes; see :meth:`VecEnv.reset`.

        ``info["lost"]`` lists scenes that were not meant but start anew too, since their simulator died.
        """
        self._check_open()
        chosen = list(range(self.num_envs)) if indices is None else [int(index) for index in indices]
        if len(set(chosen)) != len(chosen) or not all(0 <= index < self.num_envs for index in chosen):
            raise UserError(f"reset: indices {chosen} must be different scenes from 0 to {self.num_envs - 1}.")
        if not self._obs and len(chosen) < self.num_envs:
            raise UserError("The first reset of an environment must start every scene: give no indices.")
        known = self.seeds
        seeds = ([next_seed(known[index]) if known[index] >= 0 else index for index in chosen] if seed is None
                 else spread_seeds(seed, chosen))  # fmt: skip
        lost: list[int] = []
        groups = self._by_group(dict(zip(chosen, seeds, strict=True)))
        for group, wanted in groups:
            group.begin_reset(wanted)
        for group, _ in groups:
            rows, dropped = self._or_closed(group.finish_reset)
            everything = range(group.first, group.first + group.size)
            self._obs = with_rows(self._obs, everything, rows) if self._obs else self._first_obs(group, rows)
            self._dropped += dropped
            lost += [record.index for record in dropped]
        return as_tensors(self._obs), {"seeds": self.seeds, "lost": tuple(lost)}

    def chunk_step(self, actions: torch.Tensor) -> ChunkResult:
        """Apply a chunk of actions; see :meth:`VecEnv.chunk_step`."""
        self._check_open()
        values = checked_actions(actions, self.num_envs, self._action_dim)
        if not self._obs:
            raise PlugRLError("ProcessEnv was given actions before its first reset.")
        for group in self._groups:
            group.begin_chunk(values[group.first : group.first + group.size])
        parts = [self._or_closed(group.finish_chunk) for group in self._groups]
        dropped, self._dropped = tuple(self._dropped), []
        result = merged(parts, dropped)
        self._obs = result.obs
        return result.result()

    def expert_actions(self) -> torch.Tensor:
        """Return what an expert would do next; see :meth:`VecEnv.expert_actions`.

        Zeros for scenes whose simulator is gone: the next chunk reports them lost.
        """
        import torch

        self._check_open()
        rows = np.zeros((self.num_envs, self._action_dim), dtype=np.float32)
        for group in self._groups:
            answer = group.ask("expert_scenes")
            if answer is not None:
                rows[group.first : group.first + group.size] = answer
        return torch.from_numpy(rows)

    def render(self, index: int) -> torch.Tensor:
        """Return a picture of scene ``index``; see :meth:`VecEnv.render`. Black when its simulator is gone."""
        import torch

        self._check_open()
        (group,) = (item for item in self._groups if item.first <= index < item.first + item.size)
        return torch.from_numpy(group.render(index - group.first))

    def close(self) -> None:
        """End all processes; calling it again does nothing."""
        end_all(self._simulators)
        self._finalizer.detach()

    # ----------------------------------------------------------------- inside
    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise PlugRLError("The environment is closed.")

    def _or_closed(self, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns; where it raises, nothing more can be done with the processes."""
        try:
            return call()
        except BaseException:
            self.close()
            raise

    def _by_group(self, seeds: Mapping[int, int]) -> list[tuple[SceneGroup, dict[int, int]]]:
        """Return the groups that have scenes among the keys, each with its part under its own indices."""
        found = []
        for group in self._groups:
            scenes = range(group.first, group.first + group.size)
            part = {index - group.first: seeds[index] for index in scenes if index in seeds}
            if part:
                found.append((group, part))
        return found

    def _first_obs(self, group: SceneGroup, rows: dict[str, Any]) -> dict[str, Any]:
        """Return observations of all scenes in which only those of ``group`` are known yet."""
        empty = {
            name: np.zeros((self.num_envs, *value.shape[1:]), value.dtype)
            if isinstance(value, np.ndarray)
            else [""] * self.num_envs
            for name, value in rows.items()
        }
        return with_rows(empty, range(group.first, group.first + group.size), rows)


def shares(scenes: int, processes: int) -> list[int]:
    """Return how many scenes each process gets: as equal as can be, and no process without a scene."""
    processes = min(processes, scenes)
    return [scenes // processes + (index < scenes % processes) for index in range(processes)]


def merged(parts: Sequence[ChunkArrays], dropped: tuple[EpisodeRecord, ...]) -> ChunkArrays:
    """Return the results of the processes as one, with episodes that were dropped before."""
    ended = any(part.final_obs is not None for part in parts)
    final = [part.obs if part.final_obs is None else part.final_obs for part in parts]

    def rows(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    return ChunkArrays(
        obs=joined([part.obs for part in parts]),
        final_obs=joined(final) if ended else None,
        rewards=rows("rewards"),
        executed=rows("executed"),
        terminations=rows("terminations"),
        truncations=rows("truncations"),
        success_once=rows("success_once"),
        success_at_end=rows("success_at_end"),
        lost=rows("lost"),
        episodes=dropped + tuple(record for part in parts for record in part.episodes),
    )
