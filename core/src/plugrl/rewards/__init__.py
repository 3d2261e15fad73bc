"""Rewards: functions of a response and its ground truth, found by name. Importing this imports no torch."""

from __future__ import annotations

from plugrl.rewards.base import RewardFunction, RewardResult
from plugrl.rewards.registry import get_reward, register_reward

__all__ = ["RewardFunction", "RewardResult", "get_reward", "register_reward"]
