"""What every environment is built from; a plugin's own section is a subclass with its keys. Light: pydantic only."""

from __future__ import annotations

from pydantic import Field

from plugrl.config.section import Section


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

    processes: int = Field(0, ge=0)
    """Simulator processes that the scenes are spread over, watched and restarted; 0 simulates in the caller."""

    start_timeout_s: float = Field(180.0, gt=0)
    """Seconds in which a simulator process must have built its scenes."""

    step_timeout_s: float = Field(120.0, gt=0)
    """Seconds in which a simulator process must have carried out a chunk or a reset; then it counts as hung."""

    max_failures: int = Field(3, ge=1)
    """Failures in a row of one simulator process after which the run stops with their causes."""
