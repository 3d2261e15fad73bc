"""Vectorised environments and how they are found. Importing this imports no torch; the contract is loaded on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plugrl.envs.registry import get_env, register_env

if TYPE_CHECKING:
    from plugrl.envs.base import ChunkResult, EpisodeRecord, SceneLabel, StepResult, VecEnv
    from plugrl.envs.config import EnvParams
    from plugrl.envs.episodic import EpisodicEnv
    from plugrl.envs.factory import make_env

_LAZY = {
    "ChunkResult": "plugrl.envs.base",
    "EnvParams": "plugrl.envs.config",
    "EpisodeRecord": "plugrl.envs.episodes",
    "EpisodicEnv": "plugrl.envs.episodic",
    "SceneLabel": "plugrl.envs.episodes",
    "StepResult": "plugrl.envs.base",
    "VecEnv": "plugrl.envs.base",
    "make_env": "plugrl.envs.factory",
}
__all__ = [
    "ChunkResult",
    "EnvParams",
    "EpisodeRecord",
    "EpisodicEnv",
    "SceneLabel",
    "StepResult",
    "VecEnv",
    "get_env",
    "make_env",
    "register_env",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
