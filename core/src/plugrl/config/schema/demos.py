"""`demos:`: demonstrations that an environment's expert gives, for supervised training."""

from __future__ import annotations

from pydantic import Field

from plugrl.config.schema.base import Section


class DemosConfig(Section):
    """How many demonstrations `plugrl demos` collects in the scenes of `env.demos`, and where it writes them."""

    episodes: int = Field(100, ge=1)
    """Successful episodes that are kept."""

    path: str = ""
    """Folder of the data set; empty is `{trainer.default_local_dir}-demos`. Made absolute when loaded."""

    name: str = ""
    """Name of the statistics that the policy keeps (`model.unnorm_key`); empty is the name of the environment."""

    seed: int = Field(2**33, ge=0, lt=2**52)
    """Seed of the first attempt; the others follow it. The default lies beyond all seeds of evaluations."""

    noise: float = Field(0.0, ge=0)
    """Standard deviation of what is added to each action when it is carried out. The expert's own action is recorded,
    so that the demonstrations show the way back."""

    max_attempts: int | None = Field(None, ge=1)
    """Episodes after which the search ends with an error; null is ten times `episodes`."""

    fps: float = Field(10.0, gt=0)
    """Frames of a second that the data set says it has."""
