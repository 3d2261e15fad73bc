"""`env.*.init_params` of the environment `gymnasium`. Light: pydantic only."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from plugrl.envs.config import EnvParams

FIELDS = ("states", "main_images", "wrist_images", "extra_view_images")
"""Fields that an observation can become."""


class GymnasiumParams(EnvParams):
    """Which environment, and what of it is observed and counts as success."""

    id: str
    """Registered name, for example `CartPole-v1`; `module:Name-v0` imports a module first."""

    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""

    vectorization: Literal["none", "sync", "async"] = "none"
    """`none` steps the scenes one by one, which is fastest; the others are gymnasium's own vector environments."""

    autoreset_mode: Literal["disabled", "same_step", "next_step"] = "disabled"
    """How a vector environment of gymnasium restarts a scene. The results are the same."""

    observations: dict[str, str] = Field(default_factory=dict)
    """Field -> key of a dict observation, for example `{states: observation, main_images: pixels}`. Empty: what has the
    shape of a picture becomes `main_images`, everything else together `states`."""

    pixels: bool = False
    """Render the scene and observe that as `main_images`."""

    task_description: str | None = None
    """The instruction of every scene; null gives none."""

    normalise_actions: bool = False
    """Take actions from -1 to 1 and stretch them to the bounds of the action space."""

    success_key: str | None = None
    """Key of the info that says whether the task is solved; null takes `is_success` or `success` where it is there."""

    success_return: float | None = None
    """The task counts as solved from this sum of rewards in an episode on."""

    @model_validator(mode="after")
    def _known_fields(self) -> GymnasiumParams:
        unknown = sorted(set(self.observations) - set(FIELDS))
        if unknown:
            raise ValueError(f"observations has {', '.join(unknown)}; the fields are {', '.join(FIELDS)}")
        if self.pixels and "main_images" in self.observations:
            raise ValueError("pixels renders main_images, which observations takes from a key; give one of them")
        if self.vectorization != "none" and self.pixels:
            raise ValueError("pixels needs vectorization: none")
        return self
