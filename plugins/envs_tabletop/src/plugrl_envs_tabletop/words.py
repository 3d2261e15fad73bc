"""Colours, shapes, tasks and the sentences that ask for them. Light: no NumPy."""

from __future__ import annotations

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 45, 45),
    "green": (40, 190, 70),
    "blue": (55, 95, 240),
    "yellow": (240, 215, 40),
    "purple": (190, 60, 215),
    "cyan": (40, 210, 220),
    "orange": (245, 140, 30),
    "white": (240, 240, 240),
}
"""The colours that objects and zones can have, in RGB."""

SHAPES = ("cube", "ball", "cone", "cross", "ring", "diamond")
"""The objects: seen from above a square, a disc, a triangle, a plus sign, a ring, a square on its corner."""

TASKS = ("reach", "push", "pick_place")
"""The tasks, in the order of their numbers."""

PHRASINGS: dict[str, tuple[str, ...]] = {
    "reach": ("reach the {object}", "go to the {object}", "touch the {object}"),
    "push": (
        "push the {object} to the {zone} zone",
        "slide the {object} into the {zone} zone",
        "move the {object} to the {zone} zone",
    ),
    "pick_place": (
        "pick up the {object} and place it in the {zone} zone",
        "put the {object} in the {zone} zone",
        "lift the {object} into the {zone} zone",
    ),
}
"""Sentences of each task; the first is the usual one."""


def sentence(task: str, phrasing: int, colour: str, shape: str, zone: str) -> str:
    """Return the instruction of a task; ``zone`` is the colour of a zone and unused by reach."""
    return PHRASINGS[task][phrasing].format(object=f"{colour} {shape}", zone=zone)


def held_out(pair: tuple[str, str], holdout: tuple[str, ...]) -> bool:
    """Whether a (colour, shape) is left for the unseen split: by its colour, its shape, or both words."""
    return any(entry in (pair[0], pair[1], " ".join(pair)) for entry in holdout)
