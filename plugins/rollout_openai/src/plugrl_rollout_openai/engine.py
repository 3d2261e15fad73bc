"""The contract of an engine that samples asynchronously: in another process of this node, or behind an address.

Weights carry a label, a text that no other update of any run has. An engine says which label its weights had while it
drew each token; that is how a sample gets its true version even when a server restarts or others write to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from plugrl.errors import PlugRLError
from plugrl.rollouts.base import SamplingParams

Finish = Literal["stop", "length", "abort"]
LogprobsMode = Literal["raw", "processed", "scaled"]
"""What log-probabilities an engine reports: of the model's own distribution; of the one left by temperature, top-k and
top-p; or of the temperature-scaled one before truncation, which is what a completion has to carry."""


class EngineFault(PlugRLError):
    """An engine did not do what it was asked, and may when asked again."""


class EngineRefusal(PlugRLError):
    """An engine understood a request and will not serve it: asking again is of no use."""


class StaleWeights(EngineFault):
    """A sample was drawn with other weights than those in force."""


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """One sample: ``params.n`` does not count, ``adapter`` is the name it was loaded under."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    adapter: str | None = None

    def behind(self, tokens: tuple[int, ...]) -> SampleRequest:
        """Return the request for the rest of a sample whose first tokens are there."""
        done = len(tokens)
        params = replace(
            self.params,
            max_new_tokens=self.params.max_new_tokens - done,
            min_new_tokens=max(0, self.params.min_new_tokens - done),
        )
        return replace(self, prompt=self.prompt + tokens, params=params, seed=mixed_seed(self.seed, done))


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Tokens as they come. labels: of the weights that drew all tokens so far; None where this piece does not say."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: Finish | None = None
    labels: frozenset[str] | None = None


class GenerationEngine(ABC):
    """All methods run on one event loop. What may succeed when tried again raises EngineFault."""

    title: str
    """What messages call it."""

    version: str = ""
    """Name and version of its library, known once it started."""

    logprobs_mode: LogprobsMode = "scaled"

    @abstractmethod
    async def start(self) -> None:
        """Make it ready, or find out that it is. Tried again by the caller."""

    @abstractmethod
    def stream(self, request: SampleRequest) -> AsyncGenerator[Piece, None]:
        """Sample; closing the iterator gives the request up."""

    @abstractmethod
    async def label(self) -> str | None:
        """Return the label of the weights in use; None when it knows no labels."""

    @abstractmethod
    async def mark(self, label: str) -> None:
        """Give the weights in use a label."""

    @abstractmethod
    async def load(self, folder: Path, label: str) -> None:
        """Replace the weights in place by those in a folder of Hugging Face files, and forget cached prefixes."""

    @abstractmethod
    async def load_adapter(self, folder: Path, name: str, label: str, old: str | None) -> None:
        """Take an adapter in PEFT's files under a name and drop the ``old`` one."""

    @abstractmethod
    async def sleep(self) -> None:
        """Give memory of devices back; the weights may go, since they are loaded again."""

    @abstractmethod
    async def wake(self) -> None:
        """Take the memory again."""

    @abstractmethod
    async def close(self) -> None:
        """Release what this process holds; never raises for an engine that is gone."""


def mixed_seed(seed: int, number: int) -> int:
    """Return 63 bits that depend on both, for engines that draw from one seed: SplitMix64's output function."""
    mask = (1 << 64) - 1
    value = (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xD1342543DE82EF95) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) & ((1 << 63) - 1)


def is_exact(mode: LogprobsMode, params: SamplingParams) -> bool:
    """Whether an engine's numbers are those of a completion: temperature-scaled, not truncated; greedy: temperature 1.

    ``raw`` ones are at temperature 1 and for greedy sampling, ``processed`` ones where nothing is truncated or masked.
    """
    if mode == "raw":
        return params.temperature in (0.0, 1.0)
    if mode == "processed":
        whole = params.top_k == -1 and params.top_p == 1.0 and params.min_new_tokens == 0
        return params.temperature > 0 and whole
    return True
