"""The conformance kit of PlugRL, as ``[tool.plugrl-conformance]`` in pyproject.toml says."""

from plugrl.testing.platform import *  # noqa: F403
