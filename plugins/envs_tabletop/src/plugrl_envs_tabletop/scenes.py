"""What stands on the tables: the state of all scenes as arrays, and how new episodes are drawn."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.episodes import SceneLabel
from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.draws import uniforms
from plugrl_envs_tabletop.words import COLOURS, PHRASINGS, SHAPES, TASKS, held_out, sentence

REACH, PUSH, PICK_PLACE = range(3)
HAND_RADIUS = 0.08
"""Half the width of the hand's tip, which pushes."""

CANDIDATES = 24
"""Places that are tried for each object, the first that is free is taken."""

_PLACES, _OBJECTS, _ZONES, _CHOICES = 1, 2, 3, 4
"""Streams of random numbers of an episode; those of steps begin at 16."""


@dataclass
class Scenes:
    """The state of N scenes with K objects and Z zones. Lengths are in half sides of the table.

    seed: [N] of the running episode. task [N]: number in TASKS. shape, colour [N, K]: numbers in SHAPES and COLOURS.
    target [N]: which object counts. zone_colour [N, Z]; goal [N]: which zone counts. named_object, named_zone [N]: of
    which the instruction speaks. phrasing [N]. objects [N, K, 2], zones [N, Z, 2]: centres. hand [N, 3]: x, y, height
    in [0, 1]. closed [N]: the gripper. held [N]: the object in it, or -1. on_goal [N], on_other [N, K]: steps in a row
    that ended on the target, on another object (reach). misplaced [N]: something else was grasped or put into the goal.
    """

    seed: NDArray[np.uint64]
    task: NDArray[np.int64]
    shape: NDArray[np.int64]
    colour: NDArray[np.int64]
    target: NDArray[np.int64]
    zone_colour: NDArray[np.int64]
    goal: NDArray[np.int64]
    named_object: NDArray[np.int64]
    named_zone: NDArray[np.int64]
    phrasing: NDArray[np.int64]
    objects: NDArray[np.float64]
    zones: NDArray[np.float64]
    hand: NDArray[np.float64]
    closed: NDArray[np.bool_]
    held: NDArray[np.int64]
    on_goal: NDArray[np.int64]
    on_other: NDArray[np.int64]
    misplaced: NDArray[np.bool_]
    steps: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of scenes."""
        return len(self.seed)

    def replace_rows(self, rows: NDArray[np.int64], others: Scenes) -> None:
        """Put the scenes of ``others`` in the place of ``rows``."""
        for item in fields(self):
            getattr(self, item.name)[rows] = getattr(others, item.name)

    def rows(self, rows: NDArray[np.int64]) -> Scenes:
        """Return copies of some scenes."""
        return Scenes(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    def target_places(self) -> NDArray[np.float64]:
        """Centres of the objects that count, [N, 2]."""
        return self.objects[np.arange(self.count), self.target]

    def goal_places(self) -> NDArray[np.float64]:
        """Centres of the zones that count, [N, 2]; meaningless in scenes of reach."""
        return self.zones[np.arange(self.count), self.goal]


def squared_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distance of points [..., 2]."""
    x, y = first[..., 0] - second[..., 0], first[..., 1] - second[..., 1]
    return x * x + y * y


class SceneSampler:
    """Draws episodes of a configuration from their seeds."""

    def __init__(self, config: TabletopConfig) -> None:
        self.config = config
        self.task_numbers = np.array([TASKS.index(name) for name in config.tasks])
        self.colour_numbers = np.array([list(COLOURS).index(name) for name in config.colours])
        self.shape_numbers = np.array([SHAPES.index(name) for name in config.shapes])
        pairs = set(config.pairs())
        self.allowed = np.array([[(colour, shape) in pairs for shape in config.shapes] for colour in config.colours])
        self.zone_count = config.zones if set(config.tasks) - {"reach"} else 0

    def draw(self, seeds: NDArray[np.uint64]) -> Scenes:
        """Return the first states of the episodes with these seeds, [n]."""
        count = len(seeds)
        choices = uniforms(seeds, _CHOICES, 8)
        task = self.task_numbers[_pick(choices[:, 0], len(self.task_numbers))]
        colour, shape = self._objects(uniforms(seeds, _OBJECTS, self.allowed.size + len(self.allowed)))
        kinds = colour.shape[1]
        zone_colour = self._zone_colours(uniforms(seeds, _ZONES, len(self.allowed)), colour)
        target, goal = _pick(choices[:, 1], kinds), _pick(choices[:, 2], max(self.zone_count, 1))
        named_object, named_zone = target, goal
        if self.config.swap_instructions:
            named_object = (target + 1 + _pick(choices[:, 3], kinds - 1)) % kinds
            named_zone = (goal + 1) % max(self.zone_count, 1)
        objects, zones, hand = self._places(seeds, task)
        return Scenes(
            seed=seeds.copy(),
            task=task,
            shape=shape,
            colour=colour,
            target=target,
            zone_colour=zone_colour,
            goal=goal,
            named_object=named_object.copy(),
            named_zone=named_zone.copy(),
            phrasing=_pick(choices[:, 4], self.config.phrasings),
            objects=objects,
            zones=zones,
            hand=hand,
            closed=np.zeros(count, bool),
            held=np.full(count, -1),
            on_goal=np.zeros(count, np.int64),
            on_other=np.zeros((count, kinds), np.int64),
            misplaced=np.zeros(count, bool),
            steps=np.zeros(count, np.int64),
        )

    def _objects(self, numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Colours and shapes [n, K] without repetition, in an order that says nothing about the target."""
        kinds = self.config.distractors + 1
        colours, shapes = self.allowed.shape
        by_pair = np.where(self.allowed.reshape(-1), numbers[:, : colours * shapes], -1.0)
        if self.config.refer == "pair":
            chosen = np.argsort(-by_pair, axis=1, kind="stable")[:, :kinds]
            return self.colour_numbers[chosen // shapes], self.shape_numbers[chosen % shapes]
        by_colour = np.where(self.allowed.any(1), numbers[:, colours * shapes :], -1.0)
        colour = np.argsort(-by_colour, axis=1, kind="stable")[:, :kinds]
        best = by_pair.reshape(-1, colours, shapes).argmax(-1)
        return self.colour_numbers[colour], self.shape_numbers[np.take_along_axis(best, colour, axis=1)]

    def _zone_colours(self, numbers: NDArray[np.float64], colour: NDArray[np.int64]) -> NDArray[np.int64]:
        """Different colours [n, Z], those that no object has before the others."""
        used = (colour[:, :, None] == self.colour_numbers).any(1)
        order = np.argsort(numbers + used, axis=1, kind="stable")
        return self.colour_numbers[order[:, : self.zone_count]]

    def _places(
        self, seeds: NDArray[np.uint64], task: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Places of objects [n, K, 2], zones [n, Z, 2] and hand [n, 3], apart from each other where there is room."""
        config = self.config
        kinds, items = config.distractors + 1, config.distractors + 1 + self.zone_count
        numbers = uniforms(seeds, _PLACES, (items + 1) * CANDIDATES * 2).reshape(len(seeds), items + 1, CANDIDATES, 2)
        free = np.where(task == PUSH, 0.6, 0.8) if config.spread is None else np.full(len(task), config.spread)
        tried = (2.0 * numbers - 1.0) * free[:, None, None, None]
        tried[:, items] = (2.0 * numbers[:, items] - 1.0) * 0.9
        places = np.empty((len(seeds), items + 1, 2))
        rows = np.arange(len(seeds))
        for item in range(items + 1):
            gap = 2.2 * config.object_radius if item < kinds else config.object_radius + config.success_radius
            if item == items:
                gap = max(config.object_radius + HAND_RADIUS, config.success_radius) + 0.05
            nearest = np.full((len(seeds), CANDIDATES), np.inf)
            for other in range(item):
                nearest = np.minimum(nearest, squared_distance(tried[:, item], places[:, other, None]))
            chosen = np.minimum(nearest, gap * gap).argmax(1)
            places[:, item] = tried[rows, item, chosen]
        hand = np.ones((len(seeds), 3))
        hand[:, :2] = places[:, items] if config.hand_start == "random" else 0.0
        hand[:, 2] = np.where((task == PICK_PLACE) & config.height, 1.0, 0.0)
        return places[:, :kinds].copy(), places[:, kinds:items].copy(), hand


def _pick(numbers: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Whole numbers below ``count`` from uniform ones."""
    return np.minimum((numbers * count).astype(np.int64), count - 1)


def instructions(scenes: Scenes) -> list[str]:
    """What each scene is asked to do."""
    colours = tuple(COLOURS)
    found = []
    for row in range(scenes.count):
        item, zone = scenes.named_object[row], scenes.named_zone[row]
        task = TASKS[scenes.task[row]]
        zone_colour = colours[scenes.zone_colour[row, zone]] if task != "reach" else ""
        colour, shape = colours[scenes.colour[row, item]], SHAPES[scenes.shape[row, item]]
        found.append(sentence(task, int(scenes.phrasing[row]) % len(PHRASINGS[task]), colour, shape, zone_colour))
    return found


def labels(scenes: Scenes, indices: NDArray[np.int64], config: TabletopConfig) -> list[SceneLabel]:
    """The tasks of some scenes, and whether the object that counts is of the seen or the unseen split."""
    colours = tuple(COLOURS)
    found = []
    for row in indices.tolist():
        target = scenes.target[row]
        pair = colours[scenes.colour[row, target]], SHAPES[scenes.shape[row, target]]
        found.append(SceneLabel(TASKS[scenes.task[row]], "unseen" if held_out(pair, config.holdout) else "seen"))
    return found
