"""What a rank holds whose device works for the engine of a neighbour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from plugrl.errors import PlugRLError
from plugrl.rollouts.base import Completion, RolloutBackend, SamplingParams


class FollowingBackend(RolloutBackend):
    """Takes part in transfers of weights, so that all ranks have a version, and keeps nothing of them.

    The engine's own rank starts the processes that use this rank's device.
    """

    _version = 0

    def initialize(self) -> None:
        """Nothing: the first rank of the engine does it."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """Return nothing for no prompts. Raises PlugRLError for others."""
        if len(prompts):
            raise PlugRLError("Prompts were given to a rank whose device works for its neighbour's engine.")
        return []

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Let the tensors pass."""
        for _ in tensors:
            pass
        self._version = version

    def adopt_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Note the version."""
        self._version = version

    def load_adapter(self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any], version: int) -> None:
        """Note the version."""
        self._version = version

    @property
    def merges_adapters(self) -> bool:
        """Yes: it has no say in how the engine wants them."""
        return True

    @property
    def weight_version(self) -> int:
        """Version of the last transfer."""
        return self._version

    def sleep(self) -> None:
        """Nothing."""

    def wake(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
