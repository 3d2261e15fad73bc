"""A scripted expert: what somebody who knows where everything is would do next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.physics import GRASP_HEIGHT, LIFT_STEP
from plugrl_envs_tabletop.scenes import HAND_RADIUS, PICK_PLACE, PUSH, Scenes, squared_distance

Floats = NDArray[np.float64]


def expert_actions(scenes: Scenes, config: TabletopConfig, action_dim: int) -> NDArray[np.float32]:
    """Return the next action of each scene, [N, action_dim] in [-1, 1]."""
    actions = np.zeros((scenes.count, action_dim))
    goto = scenes.target_places()
    picking = scenes.task == PICK_PLACE
    if picking.any():
        goto = np.where(picking[:, None], _carry(scenes, actions, picking, config), goto)
    pushing = scenes.task == PUSH
    if pushing.any():
        goto = np.where(pushing[:, None], _push_from(scenes, config), goto)
    actions[:, :2] = _straight(goto - scenes.hand[:, :2], config.step_size)
    return actions.astype(np.float32)


def _straight(way: Floats, step: float) -> Floats:
    """Actions [N, 2] along a way; the longer component is at most 1."""
    longest = np.maximum(np.abs(way[:, 0]), np.abs(way[:, 1]))
    return way / np.maximum(longest, step)[:, None]


def _carry(scenes: Scenes, actions: Floats, picking: NDArray[np.bool_], config: TabletopConfig) -> Floats:
    """Fill in height and gripper of scenes of pick_place and return where the hand has to go, [N, 2]."""
    holding = scenes.held == scenes.target
    goto = np.where(holding[:, None], scenes.goal_places(), scenes.target_places())
    reach = config.step_size * np.ones(scenes.count)
    away = np.abs(goto - scenes.hand[:, :2])
    arriving = (away[:, 0] <= reach) & (away[:, 1] <= reach)
    height = scenes.hand[:, 2]
    low = np.where(arriving, 0.0, 1.0) if config.height else np.zeros(scenes.count)
    lift = np.clip((low - height) / LIFT_STEP, -1.0, 1.0)
    in_time = np.maximum(height - LIFT_STEP, 0.0) <= GRASP_HEIGHT
    close = np.where(holding, ~arriving, arriving & in_time & ~scenes.closed)
    if config.height:
        actions[:, 2] = lift * picking
    actions[:, 3 if config.height else 2] = np.where(close, 1.0, -1.0) * picking
    return goto


def _push_from(scenes: Scenes, config: TabletopConfig) -> Floats:
    """Where the hand has to go to push the object to its zone, [N, 2]: behind it, round it, or through it."""
    hand, item, zone = scenes.hand[:, :2], scenes.target_places(), scenes.goal_places()
    contact = HAND_RADIUS + config.object_radius
    way = zone - item
    rest = np.sqrt(squared_distance(zone, item)) + 1e-9
    ahead = way / rest[:, None]
    side = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
    relative = hand - item
    along = relative[:, 0] * ahead[:, 0] + relative[:, 1] * ahead[:, 1]
    across = relative[:, 0] * side[:, 0] + relative[:, 1] * side[:, 1]
    behind = item - ahead * (contact + 0.06)
    aligned = (along < -0.6 * contact) & (np.abs(across) < 0.35 * contact)
    # Straight through to where the object rests in the zone, a little towards the line on which both lie.
    through = item + ahead * (np.minimum(rest, config.step_size) - contact)[:, None] - side * (0.5 * across)[:, None]
    turn = np.where(across >= 0.0, 1.0, -1.0)
    beside = item + side * (turn * (contact + 0.1))[:, None] - ahead * (0.3 * contact)
    blocked = (along > -0.8 * contact) & (np.abs(across) < contact + 0.03)
    goto = np.where(blocked[:, None], beside, behind)
    goto = np.where(aligned[:, None], through, goto)
    return np.clip(goto, -1.0, 1.0)
