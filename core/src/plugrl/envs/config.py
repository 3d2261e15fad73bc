"""What every environment is built from; a plugin's own section is a subclass with its keys. Light: pydantic only."""

from __future__ import annotations

from pydantic import Field

from plugrl.config.schema.base import Section


class EnvParams(Section):
    """The settings all environments have in common."""

    num_envs: int = Field(1, ge=1)
    """Scenes that step together."""

    max_episode_steps: int | None = Field(None, ge=1)
    """Actions after which an episode is truncated; null takes the simulator's own limit."""

    auto_reset: bool = True
    """Start the next episode in a scene as soon as one ends; otherwise the scene waits for a reset."""

    ignore_terminations: bool = False
    """Go on after the task ended an episode, until the time runs out; success is recorded all the same."""
