"""Cutting a batch into micro-batches and putting the rows of their outputs back together.

All ranks must run the same number of micro-batches, because each of them holds collectives: ask
:func:`num_micro_batches` on every rank, agree on the largest, and pass it to :func:`split_micro_batches`, which fills
up with dummies that no token counts in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from plugrl.engines.base import Batch, BatchOptions
from plugrl.errors import ConfigError

_LINEAR_COST = 24576
"""Tokens at which attention, quadratic in the length, costs as much as the rest of a block (verl's workload model)."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A part of a batch: ``indices`` int64 [b] are its rows in the batch, ``data`` holds them, each ``[b, ...]``.

    A dummy has one row with an all-zero ``response_mask`` and no indices.
    """

    indices: torch.Tensor
    data: dict[str, torch.Tensor]
    is_dummy: bool = False


def row_lengths(data: Batch) -> list[int]:
    """Return the number of tokens under ``attention_mask`` of each row."""
    return [int(length) for length in data["attention_mask"].sum(dim=-1).tolist()]


def num_rows(data: Batch) -> int:
    """Return the number of rows. Raises ValueError when the batch is empty or its tensors are not row-aligned."""
    counts = {name: tensor.shape[0] for name, tensor in data.items()}
    if not counts or min(counts.values()) == 0:
        raise ValueError("A batch needs at least one row.")
    if len(set(counts.values())) > 1:
        raise ValueError(f"The tensors of a batch are not row-aligned: {counts}.")
    return next(iter(counts.values()))


def num_micro_batches(data: Batch, options: BatchOptions) -> int:
    """Return how many micro-batches this rank needs by itself.

    Raises ConfigError when one sequence alone is longer than ``options.max_tokens``.
    """
    rows = num_rows(data)
    if options.max_tokens is not None:
        return len(_fitting_bins(row_lengths(data), options.max_tokens))
    return math.ceil(rows / options.micro_batch_size) if options.micro_batch_size else 1


def split_micro_batches(data: Batch, options: BatchOptions, *, count: int | None = None) -> list[MicroBatch]:
    """Cut ``data`` into micro-batches that together hold every row once.

    By rows they are consecutive slices; under a token budget the rows are spread so that their work is balanced.
    ``count``, agreed on by all ranks, must be at least :func:`num_micro_batches`; under a budget more real
    micro-batches are made where there are rows for them, dummies follow otherwise.
    """
    needed = num_micro_batches(data, options)
    count = needed if count is None else count
    if count < needed:
        raise ValueError(f"{needed} micro-batches are needed, {count} were asked for.")
    if options.max_tokens is not None:
        lengths = row_lengths(data)
        bins = _balanced_bins(lengths, min(count, len(lengths)))
        if max(sum(lengths[row] for row in rows) for rows in bins) > options.max_tokens:
            bins = _fitting_bins(lengths, options.max_tokens)
        parts = [_take(data, torch.tensor(sorted(rows), dtype=torch.int64)) for rows in bins]
    else:
        parts = _slices(data, options.micro_batch_size or num_rows(data))
    return parts + [_dummy(data) for _ in range(count - len(parts))]


def merge_rows(parts: Iterable[tuple[MicroBatch, Mapping[str, torch.Tensor]]]) -> dict[str, torch.Tensor]:
    """Put the outputs of micro-batches, each ``[b, ...]``, back into the batch's row order; dummies are left out."""
    real = [(part.indices, outputs) for part, outputs in parts if not part.is_dummy]
    if not real:
        return {}
    order = torch.cat([indices for indices, _ in real]).argsort()
    names = real[0][1].keys()
    return {name: _rows_in_order([outputs[name] for _, outputs in real], order) for name in names}


def _rows_in_order(chunks: Sequence[torch.Tensor], order: torch.Tensor) -> torch.Tensor:
    rows = torch.cat(list(chunks))
    return rows.index_select(0, order.to(rows.device))


def _slices(data: Batch, size: int) -> list[MicroBatch]:
    rows = num_rows(data)
    return [
        MicroBatch(
            torch.arange(start, min(start + size, rows)),
            {name: tensor[start : start + size] for name, tensor in data.items()},
        )
        for start in range(0, rows, size)
    ]


def _take(data: Batch, indices: torch.Tensor) -> MicroBatch:
    return MicroBatch(
        indices, {name: tensor.index_select(0, indices.to(tensor.device)) for name, tensor in data.items()}
    )


def _dummy(data: Batch) -> MicroBatch:
    """Return the shortest row (it costs least) without a token that counts."""
    row = 0
    if "attention_mask" in data:
        lengths = row_lengths(data)
        row = lengths.index(min(lengths))
    part = {name: tensor[row : row + 1] for name, tensor in data.items()}
    if "response_mask" in part:
        part["response_mask"] = torch.zeros_like(part["response_mask"])
    return MicroBatch(torch.empty(0, dtype=torch.int64), part, is_dummy=True)


def _fitting_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return the fewest balanced bins of rows that keep within the budget, from ceil(tokens / budget) upwards."""
    longest = max(lengths)
    if longest > budget:
        raise ConfigError(f"A sequence of {longest} tokens exceeds the budget of {budget} tokens of a micro-batch.")
    for count in range(max(1, math.ceil(sum(lengths) / budget)), len(lengths)):
        bins = _balanced_bins(lengths, count)
        if max(sum(lengths[row] for row in rows) for rows in bins) <= budget:
            return bins
    return [[row] for row in range(len(lengths))]


def _balanced_bins(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Spread rows over ``count`` bins, the costliest first, each into the bin with the least work; none stays empty."""
    costs = [max(length, 1) * (_LINEAR_COST + length) for length in lengths]
    bins: list[list[int]] = [[] for _ in range(count)]
    work = [0] * count
    for row in sorted(range(len(lengths)), key=lambda row: -costs[row]):
        target = work.index(min(work))
        bins[target].append(row)
        work[target] += costs[row]
    return bins
