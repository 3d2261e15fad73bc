"""What one step gathers: sequences, scores, and the tensors computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from plugrl.algorithms import place_rewards
from plugrl.data.packing import pack_sequences, pad_rows
from plugrl.data.records import PromptRecord
from plugrl.models.processor import TextProcessor
from plugrl.rewards.base import RewardResult
from plugrl.rollouts.base import Completion


@dataclass
class Experience:
    """Rows of one step, prompt by prompt, the samples of a prompt next to each other.

    tensors: row-aligned, in the text layout of :mod:`plugrl.data.packing`: ``input_ids``, ``attention_mask`` [B, P+T],
    ``response_mask`` and ``rollout_log_probs`` [B, T]; later also ``token_scores``, ``token_rewards``,
    ``old_log_probs``, ``ref_log_probs``, ``values``, ``advantages`` and ``returns`` [B, T], ``baselines`` [B].
    """

    records: list[PromptRecord]
    group_ids: list[int]
    texts: list[str]
    weight_versions: list[int]
    tensors: dict[str, Tensor]
    results: list[RewardResult] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def response_mask(self) -> Tensor:
        """Valid response tokens [B, T]."""
        return self.tensors["response_mask"]

    @property
    def prompt_lengths(self) -> Tensor:
        """Tokens of each prompt [B]."""
        return self.tensors["attention_mask"].sum(-1) - self.response_mask.sum(-1)

    def add_scores(self, results: Sequence[RewardResult]) -> None:
        """Keep the rewards and place each on the last token of its response, as ``token_scores``."""
        self.results = list(results)
        scores = torch.tensor([result.score for result in results], dtype=torch.float32)
        self.tensors["token_scores"] = place_rewards(scores, self.response_mask)
        self.tensors["token_rewards"] = self.tensors["token_scores"]

    def add_penalty(self, name: str, values: Tensor) -> None:
        """Add ``values`` [B] to the rewards, and keep them under ``name`` beside what the reward said."""
        self.add_scores(
            [
                replace(result, score=result.score + value, info={**result.info, name: value})
                for result, value in zip(self.results, values.tolist(), strict=True)
            ]
        )

    def informative_rows(self) -> Tensor:
        """Return the rows whose group has at least two different scores: others tell a group estimator nothing."""
        spread: dict[int, set[float]] = {}
        for group, result in zip(self.group_ids, self.results, strict=True):
            spread.setdefault(group, set()).add(result.score)
        keep = [row for row, group in enumerate(self.group_ids) if len(spread[group]) > 1]
        return torch.tensor(keep, dtype=torch.long)

    def select(self, *names: str) -> dict[str, Tensor]:
        """Return the named tensors, those that are missing left out."""
        return {name: self.tensors[name] for name in names if name in self.tensors}

    def reward_components(self) -> dict[str, Tensor]:
        """Return the numbers that the reward gave beside the score for every response, by name, [B] each."""
        shared = [name for name in self.results[0].info if all(_is_number(result, name) for result in self.results)]
        return {name: torch.tensor([float(result.info[name]) for result in self.results]) for name in shared}

    def sample_rows(self, count: int) -> list[dict[str, Any]]:
        """Return the first responses of the first ``count`` prompts, as rows for the tracker."""
        rows: list[dict[str, Any]] = []
        for index, group in enumerate(self.group_ids):
            if len(rows) == count:
                break
            if index == 0 or group != self.group_ids[index - 1]:
                rows.append(self._row(index))
        return rows

    def _row(self, index: int) -> dict[str, Any]:
        record, result = self.records[index], self.results[index]
        return {
            "prompt": record.text,
            "response": self.texts[index],
            "ground_truth": record.ground_truth,
            "reward": result.score,
            **{name: value for name, value in result.info.items() if isinstance(value, int | float | str)},
        }


def _is_number(result: RewardResult, name: str) -> bool:
    return isinstance(result.info.get(name), int | float)


def collect(
    records: Sequence[PromptRecord],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    processor: TextProcessor,
    first_group: int = 0,
) -> Experience:
    """Turn completions (ordered by prompt, then sample) into rows; width and padding follow from the longest row.

    Groups are numbered from ``first_group``, the place of the first prompt in its batch.
    """
    owners = [completion.prompt_index for completion in completions]
    tensors = pack_sequences(
        [prompts[owner] for owner in owners],
        [completion.tokens for completion in completions],
        pad_token_id=processor.pad_token_id,
    )
    del tensors["responses"]
    width = tensors["response_mask"].shape[1]
    tensors["rollout_log_probs"], _ = pad_rows([completion.logprobs for completion in completions], 0.0, width)
    return Experience(
        records=[records[owner] for owner in owners],
        group_ids=[first_group + owner for owner in owners],
        texts=[processor.decode(list(completion.tokens)) for completion in completions],
        weight_versions=[completion.weight_version for completion in completions],
        tensors=tensors,
    )


def infos_for_validation(results: Sequence[RewardResult]) -> list[Mapping[str, Any]]:
    """Return what the validation summarises of each response: the reward and the numbers beside it."""
    return [{"reward": result.score, **result.info} for result in results]
