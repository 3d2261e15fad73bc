"""One Ray for all tests of this folder."""

from plugrl.testing.ray_fixture import ray_session

__all__ = ["ray_session"]
