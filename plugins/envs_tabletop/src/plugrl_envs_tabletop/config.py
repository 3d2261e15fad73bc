"""The settings of the tabletop. Light: pydantic only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from plugrl.config.section import Names
from plugrl.envs.config import EnvParams
from plugrl_envs_tabletop.words import COLOURS, SHAPES, TASKS, held_out

HELD_OUT = ("red ball", "green cube", "blue cone", "yellow cross", "purple ball", "cyan cube")
"""One shape of each of the first six colours."""


class TabletopConfig(EnvParams):
    """Which tasks, what stands on the table, what the robot senses, how it moves and what it is paid for.

    Lengths are in half sides of the table: it spans -1 to 1 in x (to the right) and y (away from the viewer).
    """

    tasks: Names = ("reach",)
    """One or several of reach, push, pick_place; each episode draws one."""

    split: Literal["seen", "unseen", "all"] = "seen"
    """Which objects stand on the table: those that are not held out, the held-out ones alone, or all."""

    holdout: Names = HELD_OUT
    """What the unseen split consists of: pairs (red ball), whole shapes (ring) or whole colours (orange)."""

    colours: Names = ("red", "green", "blue", "yellow", "purple", "cyan")
    """Colours of objects and zones."""

    shapes: Names = ("cube", "ball", "cone", "cross")
    """Shapes of objects."""

    distractors: int = Field(2, ge=0, le=7)
    """Other objects on the table, of which the instruction says nothing."""

    refer: Literal["colour", "pair"] = "colour"
    """colour: no two objects have the same colour. pair: they may, then the shape decides."""

    zones: int = Field(2, ge=1, le=4)
    """Coloured zones on the table in push and pick_place, one of them the goal."""

    phrasings: int = Field(1, ge=1, le=3)
    """From how many sentences an instruction is drawn."""

    action_dim: int | None = Field(None, ge=2)
    """Length of an action: dx, dy, then for pick_place dz and the gripper; null: what the tasks need. More entries than
    the tasks need have no effect."""

    height: bool = True
    """pick_place: the hand moves up and down (dz) and grasps at the bottom only. false: actions are dx, dy, gripper."""

    step_size: float = Field(0.3, gt=0, le=1)
    """How far an action of 1 moves the hand along an axis."""

    action_noise: float = Field(0.0, ge=0, le=2)
    """Standard deviation of what is added to each action when it is carried out: demonstrations under it show how to
    recover, since the recorded action is the one that was asked for."""

    success_radius: float = Field(0.16, gt=0, le=1)
    """reach: largest distance of the hand from the object's centre. push, pick_place: of the object from the zone's."""

    hold_steps: int = Field(2, ge=1)
    """reach: steps in a row that have to end within the radius."""

    wrong_ends: bool = True
    """End the episode without success when something else is reached, grasped, or put into the goal."""

    hand_start: Literal["random", "centre"] = "random"
    """Where the hand is when an episode begins."""

    object_radius: float = Field(0.17, gt=0.02, le=0.4)
    """Half the width of an object."""

    spread: float | None = Field(None, gt=0.2, le=0.9)
    """Objects and zones lie within this distance of the centre along each axis; null: 0.8, or 0.6 where pushed."""

    reward: Literal["shaped", "sparse"] = "shaped"
    """sparse: success_reward at success. shaped: also what the distance to the goal became smaller by."""

    success_reward: float = 1.0
    """Paid once, at the first success of an episode."""

    progress_reward: float = 1.0
    """Paid per unit of distance towards the goal, taken back when lost."""

    image_size: int = Field(32, ge=8, le=512)
    """Side of the camera images in pixels."""

    main_camera: Literal["table", "hand"] = "table"
    """table: straight above the table's centre, which fills the image. hand: straight above the hand and moving with
    it, at half the scale, so that the whole table is in sight wherever the hand is."""

    wrist_camera: bool = False
    """Also give `wrist_images`: from the hand, which stands in their middle, at 2.5 times the scale."""

    front_camera: bool = False
    """Also give `extra_view_images` [N, 1, H, W, 3]: the table from the front, looking down at an angle."""

    blank_images: bool = False
    """Give grey images in place of what the cameras see: what a policy reaches then it reaches without looking."""

    swap_instructions: bool = False
    """Ask for another object and zone that stand there than those that count: a policy that listens fails."""

    @property
    def needed_action_dim(self) -> int:
        """Entries of an action that have an effect."""
        if "pick_place" not in self.tasks:
            return 2
        return 4 if self.height else 3

    @property
    def usual_episode_steps(self) -> int:
        """Actions after which an episode is truncated where `max_episode_steps` is not given."""
        return 12 if self.tasks == ("reach",) else 20

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The (colour, shape) pairs of the split."""
        every = [(colour, shape) for colour in self.colours for shape in self.shapes]
        if self.split == "all":
            return tuple(every)
        return tuple(pair for pair in every if held_out(pair, self.holdout) == (self.split == "unseen"))

    @model_validator(mode="after")
    def _known_words(self) -> TabletopConfig:
        for key, known in (("tasks", TASKS), ("colours", tuple(COLOURS)), ("shapes", SHAPES)):
            given = getattr(self, key)
            unknown = [name for name in given if name not in known]
            if unknown or not given or len(set(given)) != len(given):
                wrong = f"unknown: {', '.join(unknown)}" if unknown else f"got {list(given)}"
                raise ValueError(f"{key} must be different names out of {', '.join(known)}; {wrong}")
        pairs = {f"{colour} {shape}" for colour in COLOURS for shape in SHAPES}
        for entry in self.holdout:
            if entry not in pairs and entry not in COLOURS and entry not in SHAPES:
                raise ValueError(f'holdout entries are a colour, a shape or both, such as "red ball"; got "{entry}"')
        return self

    @model_validator(mode="after")
    def _enough_objects(self) -> TabletopConfig:
        pairs = self.pairs()
        choices = len({colour for colour, _ in pairs}) if self.refer == "colour" else len(pairs)
        if choices < self.distractors + 1:
            what = "colours" if self.refer == "colour" else "pairs of colour and shape"
            raise ValueError(
                f"the split {self.split} has {choices} {what}, too few for a target and {self.distractors} "
                "distractors: change distractors, colours, shapes or holdout"
            )
        if self.swap_instructions and self.distractors == 0:
            raise ValueError("swap_instructions needs distractors: there is nothing else to ask for")
        if "reach" not in self.tasks and self.zones > len(self.colours):
            raise ValueError(f"{self.zones} zones need as many colours, there are {len(self.colours)}")
        return self

    @model_validator(mode="after")
    def _action_dim_suffices(self) -> TabletopConfig:
        if self.action_dim is not None and self.action_dim < self.needed_action_dim:
            raise ValueError(
                f"action_dim {self.action_dim} is too small: {', '.join(self.tasks)} take {self.needed_action_dim}"
            )
        return self


