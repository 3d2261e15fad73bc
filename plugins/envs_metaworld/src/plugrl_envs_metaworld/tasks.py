"""The tasks: their names in Meta-World without the version, what a robot is told to do, and the usual selections."""

from __future__ import annotations

VERSION = "-v3"
"""What Meta-World's own names end in."""

INSTRUCTIONS: dict[str, str] = {
    "assembly": "pick up the nut and put it over the peg",
    "basketball": "drop the basketball into the basket",
    "bin-picking": "move the block from one bin to the other",
    "box-close": "pick up the lid and close the box with it",
    "button-press": "press the button on the wall",
    "button-press-topdown": "press the button from above",
    "button-press-topdown-wall": "reach over the wall and press the button from above",
    "button-press-wall": "reach past the wall and press the button",
    "coffee-button": "push the button of the coffee machine",
    "coffee-pull": "pull the mug away from the coffee machine",
    "coffee-push": "push the mug under the coffee machine",
    "dial-turn": "turn the dial half way round",
    "disassemble": "lift the nut off the peg",
    "door-close": "close the door",
    "door-lock": "lock the door by turning its handle clockwise",
    "door-open": "open the door",
    "door-unlock": "unlock the door by turning its handle anticlockwise",
    "drawer-close": "push the drawer shut",
    "drawer-open": "pull the drawer open",
    "faucet-close": "turn the tap clockwise",
    "faucet-open": "turn the tap anticlockwise",
    "hammer": "hammer the nail into the wall",
    "hand-insert": "put the hand into the hole",
    "handle-press": "press the handle down",
    "handle-press-side": "press the handle down from the side",
    "handle-pull": "pull the handle up",
    "handle-pull-side": "pull the handle up from the side",
    "lever-pull": "pull the lever up",
    "peg-insert-side": "insert the peg into the hole from the side",
    "peg-unplug-side": "pull the peg out of the hole sideways",
    "pick-out-of-hole": "pick the object out of the hole and bring it to the goal",
    "pick-place": "pick up the object and place it at the goal",
    "pick-place-wall": "pick up the object, pass the wall, and place it at the goal",
    "plate-slide": "slide the plate into the cabinet",
    "plate-slide-back": "slide the plate out of the cabinet",
    "plate-slide-back-side": "slide the plate out of the cabinet sideways",
    "plate-slide-side": "slide the plate into the cabinet sideways",
    "push": "push the object to the goal",
    "push-back": "push the object back to the goal",
    "push-wall": "push the object around the wall to the goal",
    "reach": "move the hand to the goal",
    "reach-wall": "move the hand past the wall to the goal",
    "shelf-place": "pick up the object and place it on the shelf",
    "soccer": "kick the ball into the goal",
    "stick-pull": "grasp the stick and pull the box with it",
    "stick-push": "grasp the stick and push the box with it",
    "sweep": "sweep the object off the table",
    "sweep-into": "sweep the object into the hole",
    "window-close": "push the window shut",
    "window-open": "push the window open",
}
"""Task -> instruction."""

MT10 = (
    "reach",
    "push",
    "pick-place",
    "door-open",
    "drawer-open",
    "drawer-close",
    "button-press-topdown",
    "peg-insert-side",
    "window-open",
    "window-close",
)
SELECTIONS: dict[str, tuple[str, ...]] = {"mt10": MT10, "mt50": tuple(INSTRUCTIONS)}
"""Name of a selection -> its tasks."""


def resolve(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return tasks, selections replaced by their tasks and versions left out. Raises ValueError for unknown names."""
    found: list[str] = []
    for name in names:
        plain = name.lower().removesuffix(VERSION)
        if plain not in INSTRUCTIONS and plain not in SELECTIONS:
            known = ", ".join((*SELECTIONS, *INSTRUCTIONS))
            raise ValueError(f"there is no task {name!r}; there are {known}")
        found += SELECTIONS.get(plain, (plain,))
    return tuple(dict.fromkeys(found))
