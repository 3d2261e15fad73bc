"""The contract of a rollout backend: what turns prompts into sampled token sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from plugrl.errors import UnsupportedCapability

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample. ``temperature`` 0 is greedy; ``top_k`` -1 and ``top_p`` 1.0 truncate nothing.

    n: samples per prompt. stop_token_ids: any of them ends a sample and is its last token.
    min_new_tokens: no stop token before that many. ignore_eos: the model's own end tokens do not stop.
    """

    n: int = 1
    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checks = {
            "n is at least 1": self.n >= 1,
            "max_new_tokens is at least 1": self.max_new_tokens >= 1,
            "temperature is at least 0": self.temperature >= 0,
            "top_k is -1 or at least 1": self.top_k == -1 or self.top_k >= 1,
            "top_p is above 0 and at most 1": 0 < self.top_p <= 1,
            "min_new_tokens lies between 0 and max_new_tokens": 0 <= self.min_new_tokens <= self.max_new_tokens,
        }
        for rule, holds in checks.items():
            if not holds:
                raise ValueError(f"Sampling parameters: {rule}, got {self}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Completion:
    """One sampled sequence.

    tokens: the ids, a stop token included. logprobs: float [len], of the sampled tokens under the temperature-scaled,
    untruncated distribution, equal to what the policy's ``default_forward`` recomputes. weight_version: of the weights
    it was sampled with. sample ``sample_index`` of prompt ``prompt_index``.
    """

    prompt_index: int
    sample_index: int
    tokens: tuple[int, ...] | torch.Tensor
    logprobs: torch.Tensor
    finish_reason: FinishReason
    weight_version: int


@dataclass(frozen=True, kw_only=True)
class RolloutPlace:
    """Where a backend stands among those of its group.

    Attributes:
        engine: number of this engine; there are ``engines`` of them, of as many ranks each as
            :meth:`RolloutBackend.ranks_per_engine` says.
        devices: the physical ids of the devices of those ranks, all on one node; empty where no mask keeps processes
            apart. A rank sees its own alone: an engine of several starts its processes under all of them.
        variable: the environment variable that is the mask.
    """

    engine: int = 0
    engines: int = 1
    devices: tuple[str, ...] = ()
    variable: str = ""


class RolloutBackend(ABC):
    """Generates sequences with a copy of the policy whose weights are loaded by name."""

    def __init__(self, model_config: Any, rollout_config: Any) -> None:
        self.model_config = model_config
        self.rollout_config = rollout_config
        self.place = RolloutPlace()

    @classmethod
    def ranks_per_engine(cls, rollout_config: Any) -> int:
        """Return over how many neighbouring ranks one engine spreads. Only the first of them gets a backend."""
        return 1

    @property
    def engine_version(self) -> str:
        """Name and version of the library that generates; all ranks of a group must have the same. Empty: no matter."""
        return ""

    @abstractmethod
    def initialize(self) -> None:
        """Build the model on the current platform's device."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample ``params.n`` completions for each prompt, ordered by prompt, then sample.

        ``seeds`` holds one seed per prompt: sample j of prompt i depends on (seeds[i], j) alone, not on the batch.
        """

    @abstractmethod
    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights, given as a stream under published names; strict. ``version`` then marks samples."""

    def adopt_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace all weights by host tensors that stay as they are until the next call: they may be kept, not copied.

        Raises WeightSyncError as :meth:`load_weights`. The default copies.
        """
        self.load_weights(tensors.items(), version)

    def merge_adapter(
        self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any]
    ) -> Mapping[str, torch.Tensor]:
        """Return the weights of the plain model from those of one with an adapter, whose configuration is given.

        A backend that cannot keeps this default, which raises UnsupportedCapability, and gets merged weights.
        """
        raise UnsupportedCapability(f"{type(self).__name__} cannot merge adapters.")

    @property
    def merges_adapters(self) -> bool:
        """Whether :meth:`load_adapter` works, so that the adapter alone need be sent."""
        return False

    def load_adapter(self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any], version: int) -> None:
        """Replace all weights by those of a model with an adapter, whose configuration is given.

        The tensors stay as they are until the next call. The default adopts what :meth:`merge_adapter` returns.
        """
        self.adopt_weights(self.merge_adapter(tensors, adapter), version)

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights in use under published names, for comparisons; the tensors may be those in use.

        A backend that cannot show its weights keeps this default, which raises UnsupportedCapability.
        """
        raise UnsupportedCapability(f"{type(self).__name__} cannot show its weights.")

    @property
    @abstractmethod
    def weight_version(self) -> int:
        """Version of the weights in use, 0 for those it was built with."""

    @abstractmethod
    def sleep(self) -> None:
        """Give device memory back; the next call is :meth:`wake` or :meth:`close`."""

    @abstractmethod
    def wake(self) -> None:
        """Make :meth:`generate` and :meth:`load_weights` possible again after :meth:`sleep`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it again does nothing."""
