"""The prompts of a run: loaded, tokenised, and drawn in a resumable order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plugrl.config.schema import RunConfig
from plugrl.data import PromptSampler, Tokenized, load_dataset, tokenize_examples, tokenize_prompts
from plugrl.data.records import PromptRecord
from plugrl.models.processor import TextProcessor

_SEED_STRIDE = 1_000_003
"""A prime: seeds of neighbouring steps and rows never meet within a run."""


@dataclass(frozen=True)
class PromptBatch:
    """Prompts of one step with the seed of each, which depends on run seed, step and row alone."""

    records: list[PromptRecord]
    prompts: list[list[int]]
    seeds: list[int]


class PromptData:
    """Training and held-out prompts. Raises DataError for anything that is wrong with them."""

    def __init__(self, config: RunConfig, processor: TextProcessor, *, supervised: bool = False) -> None:
        splits = load_dataset(config.data)
        self._config = config
        self._processor = processor
        self.train = self._tokenize(splits.train, config.data.train_max_samples, supervised)
        self.val = self._tokenize(splits.val, config.data.val_max_samples)
        batch_size = config.sft.train_batch_size if supervised else config.data.train_batch_size
        seed = config.trainer.seed if config.data.seed is None else config.data.seed
        self.sampler = PromptSampler(len(self.train), batch_size, config.data.shuffle, seed)

    def next_rows(self) -> list[int]:
        """Return the row numbers of the next training batch."""
        return next(self.sampler)

    def next_batch(self, step: int) -> PromptBatch:
        """Return the next training prompts."""
        return _batch(self.train, self.next_rows(), self._config.trainer.seed, step)

    def validation_batches(self) -> list[PromptBatch]:
        """Return the held-out prompts; their seeds are the same in every validation."""
        size = self._config.data.val_batch_size or max(len(self.val), 1)
        rows = range(len(self.val))
        return [
            _batch(self.val, rows[start : start + size], self._config.trainer.seed, 0)
            for start in range(0, len(rows), size)
        ]

    def _tokenize(self, records: list[PromptRecord], limit: int | None, supervised: bool = False) -> Tokenized:
        data = self._config.data
        if supervised:
            return tokenize_examples(
                records, self._processor, data.max_prompt_length, data.max_response_length,
                data.filter_overlong_prompts, data.truncation, data.template, limit,
            )  # fmt: skip
        return tokenize_prompts(
            records, self._processor, data.max_prompt_length, data.filter_overlong_prompts, data.truncation,
            data.template, limit,
        )  # fmt: skip


def _batch(data: Tokenized, rows: Sequence[int], seed: int, step: int) -> PromptBatch:
    return PromptBatch(
        records=[data.records[row] for row in rows],
        prompts=[data.prompts[row] for row in rows],
        seeds=[((seed * _SEED_STRIDE + step) * _SEED_STRIDE + row) % 2**62 for row in rows],
    )
