"""How the hand moves the things on the table, and when a task is solved or lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.draws import noise
from plugrl_envs_tabletop.scenes import HAND_RADIUS, PICK_PLACE, PUSH, REACH, Scenes, squared_distance

LIFT_STEP = 0.5
"""Height that an action of 1 moves the hand by; the whole range is 1."""

GRASP_HEIGHT = 0.25
"""Largest height at which the gripper reaches an object."""

SUBSTEPS = 4
"""Parts in which the hand's way is gone through when it pushes."""

_FIRST_STEP = 16
"""Stream of random numbers of an episode's first step."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def advance(scenes: Scenes, actions: Floats, active: Bools, config: TabletopConfig) -> None:
    """Carry out one action [N, action_dim] in the scenes ``active`` [N]; the others do not move."""
    moves = np.clip(actions, -1.0, 1.0)
    if config.action_noise:
        slips = noise(scenes.seed, scenes.steps + _FIRST_STEP, config.needed_action_dim)
        moves[:, : slips.shape[1]] += config.action_noise * slips
        moves = np.clip(moves, -1.0, 1.0)
    scenes.steps += active
    shift = moves[:, :2] * config.step_size * active[:, None]
    pushing = np.flatnonzero(active & (scenes.task == PUSH))
    if len(pushing):
        _push(scenes, pushing, shift[pushing], config)
    scenes.hand[:, :2] = np.clip(scenes.hand[:, :2] + shift * (scenes.task != PUSH)[:, None], -1.0, 1.0)
    picking = np.flatnonzero(active & (scenes.task == PICK_PLACE))
    if len(picking):
        _pick_place(scenes, picking, moves[picking], config)
    reaching = active & (scenes.task == REACH)
    if reaching.any():
        _note_reached(scenes, reaching, config)


def _push(scenes: Scenes, rows: NDArray[np.int64], shift: Floats, config: TabletopConfig) -> None:
    """Move the hand in small parts; objects that it runs into give way along the line of centres."""
    hand, objects = scenes.hand[rows, :2], scenes.objects[rows]
    contact = HAND_RADIUS + config.object_radius
    inside = 1.0 - config.object_radius / 2
    for _ in range(SUBSTEPS):
        hand = np.clip(hand + shift / SUBSTEPS, -1.0, 1.0)
        away = objects - hand[:, None]
        distance = np.sqrt(squared_distance(objects, hand[:, None])) + 1e-9
        depth = np.maximum(contact - distance, 0.0)
        objects = np.clip(objects + away * (depth / distance)[..., None], -inside, inside)
    scenes.hand[rows, :2] = hand
    scenes.objects[rows] = objects
    if config.wrong_ends:
        in_goal = squared_distance(objects, scenes.goal_places()[rows][:, None]) <= config.success_radius**2
        in_goal[np.arange(len(rows)), scenes.target[rows]] = False
        scenes.misplaced[rows] |= in_goal.any(1)


def _pick_place(scenes: Scenes, rows: NDArray[np.int64], moves: Floats, config: TabletopConfig) -> None:
    """Move the hand up or down, close or open it, and carry what it holds."""
    if config.height:
        scenes.hand[rows, 2] = np.clip(scenes.hand[rows, 2] + moves[:, 2] * LIFT_STEP, 0.0, 1.0)
    _carry(scenes, rows)
    close = moves[:, 3 if config.height else 2] > 0.0
    distance = squared_distance(scenes.objects[rows], scenes.hand[rows, None, :2])
    nearest = distance.argmin(1)
    reachable = (distance.min(1) <= config.object_radius**2) & (scenes.hand[rows, 2] <= GRASP_HEIGHT)
    grasped = close & ~scenes.closed[rows] & reachable
    scenes.held[rows] = np.where(grasped, nearest, np.where(close, scenes.held[rows], -1))
    scenes.closed[rows] = close
    _carry(scenes, rows)
    if config.wrong_ends:
        scenes.misplaced[rows] |= (scenes.held[rows] >= 0) & (scenes.held[rows] != scenes.target[rows])


def _carry(scenes: Scenes, rows: NDArray[np.int64]) -> None:
    holding = rows[scenes.held[rows] >= 0]
    scenes.objects[holding, scenes.held[holding]] = scenes.hand[holding, :2]


def _note_reached(scenes: Scenes, reaching: Bools, config: TabletopConfig) -> None:
    """Count the steps in a row on the target, and on the same other object."""
    near = squared_distance(scenes.objects, scenes.hand[:, None, :2]) <= config.success_radius**2
    on_goal = near[np.arange(scenes.count), scenes.target]
    near[np.arange(scenes.count), scenes.target] = False
    scenes.on_goal[:] = np.where(reaching, (scenes.on_goal + 1) * on_goal, scenes.on_goal)
    scenes.on_other[:] = np.where(reaching[:, None], (scenes.on_other + 1) * near, scenes.on_other)
    if config.wrong_ends:
        scenes.misplaced |= reaching & (scenes.on_other >= config.hold_steps).any(1)


def solved(scenes: Scenes, config: TabletopConfig) -> Bools:
    """Whether each task is solved now, [N]; never where something was misplaced before."""
    inside = squared_distance(scenes.target_places(), scenes.goal_places()) <= config.success_radius**2 if (
        scenes.zones.shape[1]) else np.zeros(scenes.count, bool)  # fmt: skip
    done = np.where(scenes.task == REACH, scenes.on_goal >= config.hold_steps, inside & (scenes.held < 0))
    return np.asarray(done & ~scenes.misplaced, dtype=np.bool_)


def distance_to_go(scenes: Scenes) -> Floats:
    """What shaped rewards pay for making smaller, [N]: the way of the hand (reach), or that of the object to the zone
    and a part of that of the hand to the object."""
    hand = np.sqrt(squared_distance(scenes.target_places(), scenes.hand[:, :2]))
    if not scenes.zones.shape[1]:
        return hand
    rest = np.sqrt(squared_distance(scenes.target_places(), scenes.goal_places()))
    return np.where(scenes.task == REACH, hand, rest + 0.5 * hand)
