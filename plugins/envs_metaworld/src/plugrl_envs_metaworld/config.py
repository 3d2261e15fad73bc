"""`env.*.init_params` of the environment `metaworld`. Light: pydantic only."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, field_validator

from plugrl.config.section import Names
from plugrl.envs.config import EnvParams
from plugrl_envs_metaworld.tasks import resolve

Camera = Literal["topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV"]
"""A camera of Meta-World's scenes."""

CAMERAS: tuple[str, ...] = get_args(Camera)
OWN_LIMIT = 500
"""Steps after which Meta-World ends an episode."""


class MetaworldParams(EnvParams):
    """Which tasks, what is observed, and what is rewarded."""

    tasks: Names = ("reach",)
    """Names with or without `-v3`, or `mt10`, `mt50`. Of several, the seed of an episode chooses one."""

    max_episode_steps: int | None = Field(OWN_LIMIT, ge=1)
    """Actions after which an episode is truncated."""

    states: bool = True
    """Observe the 39 numbers: hand, gripper and objects now and a step ago, and the goal."""

    goal_visible: bool = True
    """Show the goal in the states; otherwise its three numbers are zero."""

    main_camera: Camera | None = None
    """Camera of `main_images`; null renders none."""

    wrist_camera: Camera | None = None
    """Camera of `wrist_images`."""

    extra_cameras: tuple[Camera, ...] = ()
    """Cameras of `extra_view_images`, in order."""

    image_size: int = Field(96, ge=8, le=1024)
    """Height and width of observed pictures."""

    render_quality: Literal["fast", "full"] = "fast"
    """`fast` leaves out shadows, reflections and smoothed edges: ten times as fast in software."""

    render_camera: Camera = "corner2"
    """Camera of pictures for people."""

    render_size: int = Field(256, ge=8, le=2048)
    """Height and width of pictures for people."""

    reward: Literal["dense", "sparse"] = "dense"
    """`dense` is Meta-World's own, 0 to 10 a step; `sparse` is 1 in a step in which the task is solved."""

    reward_scale: float = Field(1.0, gt=0)
    """Rewards are multiplied by it."""

    reward_function_version: Literal["v1", "v2"] = "v2"
    """Version of Meta-World's dense rewards."""

    terminate_on_success: bool = False
    """End an episode when its task is solved. Meta-World does not; with dense rewards it would punish success."""

    @field_validator("tasks")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("give at least one task")
        return resolve(value)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras that are observed, in the order of the fields."""
        single = (self.main_camera, self.wrist_camera)
        return tuple(name for name in single if name is not None) + self.extra_cameras
