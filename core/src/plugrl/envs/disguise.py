"""Scenes whose pictures are blank or whose instructions are those of others: what a policy does without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.errors import UserError

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

GREY = 127
IMAGES = ("main_images", "wrist_images", "extra_view_images")
_TEXTS = "task_descriptions"
_WAYS = ("blank_images", "swap_instructions")


def own_disguises(schema: type[BaseModel], blank_images: bool, swap_instructions: bool) -> dict[str, bool]:
    """Return the settings of those that an environment knows itself, by the same name.

    An environment can ask for something else that stands in the very scene; :func:`disguised` can only take the
    instruction of another scene.
    """
    wanted = dict(zip(_WAYS, (blank_images, swap_instructions), strict=True))
    return {name: True for name, value in wanted.items() if value and name in schema.model_fields}


def disguised(env: VecEnv, *, blank_images: bool = False, swap_instructions: bool = False) -> VecEnv:
    """Return the environment with grey pictures, or with the instruction of another scene in each scene; or itself."""
    return _Disguised(env, blank_images, swap_instructions) if blank_images or swap_instructions else env


class _Disguised(VecEnv):
    """Changes observations alone; everything else is that of the environment."""

    def __init__(self, env: VecEnv, blank_images: bool, swap_instructions: bool) -> None:
        self._env = env
        self._blank = blank_images
        self._swap = swap_instructions
        self._told: list[str] = [""] * env.num_envs

    @property
    def num_envs(self) -> int:
        """Number of scenes."""
        return self._env.num_envs

    @property
    def action_dim(self) -> int:
        """Numbers in one action."""
        return self._env.action_dim

    @property
    def max_episode_steps(self) -> int | None:
        """Actions after which an episode is truncated."""
        return self._env.max_episode_steps

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seed of the episode in each scene."""
        return self._env.seeds

    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes, each with an instruction of another scene that stays until its end."""
        obs, info = self._env.reset(seed, indices)
        return self._changed(obs, range(self.num_envs) if indices is None else indices), info

    def chunk_step(self, actions: torch.Tensor) -> ChunkResult:
        """Apply a chunk of actions."""
        result = self._env.chunk_step(actions)
        final = None if result.final_obs is None else self._changed(result.final_obs, ())
        started = (result.dones.any(1) | result.lost).nonzero().flatten().tolist()
        return replace(result, obs=self._changed(result.obs, started), final_obs=final)

    def expert_actions(self) -> torch.Tensor:
        """Return what an expert, who sees everything, would do next."""
        return self._env.expert_actions()

    def render(self, index: int) -> torch.Tensor:
        """Return a picture of a scene for people, which is not blank."""
        return self._env.render(index)

    def offload(self) -> None:
        """Give device memory back."""
        self._env.offload()

    def onload(self) -> None:
        """Take back what :meth:`offload` gave away."""
        self._env.onload()

    def close(self) -> None:
        """Release everything."""
        self._env.close()

    def _changed(self, obs: Mapping[str, Any], started: Sequence[int]) -> Mapping[str, Any]:
        import torch

        changed = dict(obs)
        for name in IMAGES if self._blank else ():
            if changed.get(name) is not None:
                changed[name] = torch.full_like(changed[name], GREY)
        if self._swap:
            own = changed.get(_TEXTS)
            if own is None:
                raise UserError("env.eval.swap_instructions: the environment gives no instructions.")
            for scene in started:
                self._told[scene] = _other(own, scene)
            changed[_TEXTS] = list(self._told)
        return changed


def _other(texts: Sequence[str], scene: int) -> str:
    """Return the next scene's instruction that is another one than that of ``scene``."""
    for step in range(1, len(texts)):
        text = texts[(scene + step) % len(texts)]
        if text != texts[scene]:
            return text
    raise UserError(
        f'env.eval.swap_instructions: all scenes have the instruction "{texts[scene]}", so there is no other one.'
    )
