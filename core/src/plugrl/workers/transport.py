"""Completions on their way from a rollout worker to the driver: a few arrays instead of a tensor for each sample.

Serialising a tensor costs about as much as sampling a dozen tokens with a small model, whatever its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plugrl.rollouts.base import Completion, FinishReason


@dataclass(frozen=True, kw_only=True)
class PackedCompletions:
    """N completions. numbers: int64 [N, 4] with prompt, sample, length and weight version of each.

    tokens int64 and logprobs [sum of lengths] hold the samples one after the other.
    """

    numbers: torch.Tensor
    finish_reasons: tuple[FinishReason, ...]
    tokens: torch.Tensor
    logprobs: torch.Tensor

    @classmethod
    def pack(cls, completions: Sequence[Completion]) -> PackedCompletions:
        """Put completions together, in their order; there may be none."""
        numbers = [
            (item.prompt_index, item.sample_index, len(item.tokens), item.weight_version) for item in completions
        ]
        return cls(
            numbers=torch.tensor(numbers, dtype=torch.long).reshape(-1, 4),
            finish_reasons=tuple(item.finish_reason for item in completions),
            tokens=torch.tensor([int(token) for item in completions for token in item.tokens], dtype=torch.long),
            logprobs=torch.cat([item.logprobs for item in completions]) if completions else torch.empty(0),
        )

    def unpack(self) -> list[Completion]:
        """Return the completions with their tokens as tuples; the log-probabilities are views."""
        numbers = self.numbers.tolist()
        lengths = [length for _, _, length, _ in numbers]
        tokens = self.tokens.tolist()
        completions, start = [], 0
        for row, reason, logprobs in zip(
            numbers, self.finish_reasons, self.logprobs.split(lengths) if lengths else (), strict=True
        ):
            prompt, sample, length, version = row
            completions.append(
                Completion(
                    prompt_index=prompt,
                    sample_index=sample,
                    tokens=tuple(tokens[start : start + length]),
                    logprobs=logprobs,
                    finish_reason=reason,
                    weight_version=version,
                )
            )
            start += length
        return completions
