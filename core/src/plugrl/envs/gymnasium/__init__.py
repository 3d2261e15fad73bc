"""Any gymnasium environment as a :class:`plugrl.envs.VecEnv`. Importing this imports no gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugrl.envs.gymnasium.config import GymnasiumParams

if TYPE_CHECKING:
    from plugrl.envs.episodic import EpisodicEnv

__all__ = ["GymnasiumParams", "build"]


def build(params: GymnasiumParams) -> EpisodicEnv:
    """Return the environment that the configuration names. Raises UserError for what gymnasium does not know."""
    from plugrl.envs.gymnasium.scenes import GymnasiumScenes
    from plugrl.envs.gymnasium.vector import GymnasiumVector

    return GymnasiumScenes(params) if params.vectorization == "none" else GymnasiumVector.made(params)
