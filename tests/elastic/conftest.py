"""One Ray for the trainers that are scaled."""

from plugrl.testing.ray_fixture import ray_session

__all__ = ["ray_session"]
