"""One Ray for the faults too."""

from plugrl.testing.ray_fixture import ray_session

__all__ = ["ray_session"]
