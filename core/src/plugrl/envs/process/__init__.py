"""Simulators in processes of their own: isolated, watched, and started again when they die, hang or raise."""

from __future__ import annotations

from plugrl.envs.process.env import ProcessEnv

__all__ = ["ProcessEnv"]
