"""For tests of engines where none can run: a scripted model, and stand-ins held to the signatures of a version.

A call of a stand-in with an argument that the published version does not have fails as it would there.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from plugrl_rollout_openai.surface import Facts
from plugrl_rollout_openai.weights_folder import read_folder

VOCABULARY = 97
_CHOICES = inspect.Parameter


def scripted(prompt: tuple[int, ...], seed: int, weight: float, count: int) -> tuple[list[int], list[float]]:
    """Return tokens and log-probabilities that tell which weights drew them; no two requests have the same."""
    tokens, logprobs = list[int](), list[float]()
    state = (seed * 31 + sum(prompt) * 7 + round(weight * 1000) * 13) % 1000003
    for _ in range(count):
        state = (state * 48271 + 11) % 2147483647
        tokens.append(state % VOCABULARY)
        logprobs.append(-1.0 - weight - tokens[-1] / 1000)
    return tokens, logprobs


def scripted_weights(weight: float) -> dict[str, torch.Tensor]:
    """Return the tensors of a scripted model: the mean of the first is its weight."""
    return {"a.weight": torch.full((2, 3), weight), "b.weight": torch.zeros(4)}


class ScriptedModel:
    """A model whose weights are one number."""

    def __init__(self) -> None:
        self.weight = 0.0

    def load(self, folder: str | Path) -> None:
        """Read the number from a folder of weights."""
        self.weight = float(dict(read_folder(Path(folder)))["a.weight"].mean())

    def sample(
        self, prompt: tuple[int, ...], params: Mapping[str, Any], seed: int
    ) -> tuple[list[int], list[float], str]:
        """Return tokens, log-probabilities and why it ended; ``params`` has ``count`` and ``stop``."""
        tokens, logprobs = scripted(prompt, seed, self.weight, params["count"])
        for index, token in enumerate(tokens):
            if token in params["stop"]:
                return tokens[: index + 1], logprobs[: index + 1], "stop"
        return tokens, logprobs, "length"


class Recorded:
    """The recorded signatures of one version of an engine."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """Read what ``plugrl_rollout_openai.surface --record`` printed."""
        return cls(json.loads(path.read_text()))

    def names(self, target: str) -> list[str]:
        """Return arguments, fields or values of a target. KeyError for one that was not recorded."""
        found = self.facts[target]
        assert found is not None, f"{target} is not there"
        return found

    def struct(self, target: str) -> type:
        """Return a class that takes the recorded fields and no others; those not given are None."""
        fields = self.names(target)

        def build(self: Any, **values: Any) -> None:
            unknown = values.keys() - set(fields)
            if unknown:
                raise TypeError(f"{target} has no {sorted(unknown)}")
            self.__dict__.update(dict.fromkeys(fields), **values)

        return type(target.partition(":")[2], (), {"__init__": build})

    def held(self, target: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: the function is called as the recorded signature allows, or TypeError."""
        signature = inspect.Signature(list(_parameters(self.names(target))))

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def checked(*arguments: Any, **named: Any) -> Any:
                signature.bind(*arguments, **named)
                return function(*arguments, **named)

            return checked

        return decorate


def _parameters(names: list[str]) -> list[inspect.Parameter]:
    found: list[inspect.Parameter] = []
    kind: Any = _CHOICES.POSITIONAL_OR_KEYWORD
    for name in names:
        plain = name.rstrip("=").lstrip("*")
        if name.startswith("**"):
            found.append(_CHOICES(plain, _CHOICES.VAR_KEYWORD))
        elif name.startswith("*"):
            kind = _CHOICES.KEYWORD_ONLY
            if plain:
                found.append(_CHOICES(plain, _CHOICES.VAR_POSITIONAL))
        else:
            found.append(_CHOICES(plain, kind, default=None if name.endswith("=") else _CHOICES.empty))
    return found
