"""`model:` for the model type `openvla_oft`. Light: pydantic only."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from plugrl_models_openvla.config import OpenVLAConfig


class OpenVLAOFTConfig(OpenVLAConfig):
    """The keys of `openvla`, and what a policy that gives whole chunks in one pass has besides."""

    model_type: str = "openvla_oft"

    num_action_chunks: int = Field(8, ge=1)
    """Actions that the policy gives at once."""

    max_prompt_length: int = Field(50, ge=2)
    """Tokens of the longest prompt; a longer one is an error."""

    action_head: Literal["discrete", "l1"] = "discrete"
    """`discrete` draws a token for each number and is trained by reinforcement; `l1` gives the numbers themselves and
    is trained on demonstrations alone."""

    implement_version: Literal["rlinf", "official"] | None = None
    """Whose sequences the discrete head was trained on: `official` ones end with a stop token. Null: rlinf; an l1 head
    has official ones always."""

    value_type: Literal["action_level", "chunk_level"] = "action_level"
    """One value for each action of a chunk, or one for all."""

    action_norm: Literal["bounds_q99", "bounds"] = "bounds_q99"
    """Which statistics are -1 and 1: the quantiles 0.01 and 0.99, or the smallest and largest value."""

    num_images_in_input: int = Field(1, ge=1)
    """Cameras: the main one, then those at the wrist, then further views."""

    use_proprio: bool = False
    """Give the model the state of the robot as a token."""

    proprio_dim: int | None = Field(None, ge=1)
    """Numbers of the state of the robot; null: as many as the statistics of `unnorm_key` have."""

    use_film: bool = False
    """Let the instruction change what the vision towers compute."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.action_head == "l1" and self.implement_version == "rlinf":
            raise ValueError("implement_version: rlinf has no l1 head; leave it out, or take action_head: discrete")
        if self.proprio_dim is not None and not self.use_proprio:
            raise ValueError(f"proprio_dim: {self.proprio_dim} has no effect without use_proprio: true")
        return self

    @property
    def keeps_stop(self) -> bool:
        """Whether the stop token stands behind the slots."""
        return self.action_head == "l1" or self.implement_version == "official"
