"""Where parts of a parameter lie in the tensors of a Hugging Face model.

A parameter of megatron-core holds several tensors of the model, or parts of them, by turns: queries, keys and values of
one group of heads after the other, or gate and up projection one after the other. Seen with more dimensions, each of
them is a box. The distributed optimizer cuts parameters as flat runs of elements, which are a few boxes each. A box of
both cuts is a box of the model's tensor again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from plugrl.engines.state import Block

Ranges = tuple[tuple[int, int], ...]
"""First and end index in each dimension."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A tensor of the model, or a block of it, inside a parameter.

    name, shape: of the whole tensor. offsets: where the block begins in it. view: the parameter's shape with more
    dimensions. box: the block in these. merged: for each dimension of the tensor, those of the view that are it; an
    empty tuple is one index. is_owner: whether this rank gives it; others hold copies.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    view: tuple[int, ...]
    box: Ranges
    merged: tuple[tuple[int, ...], ...]
    is_owner: bool = True

    def within(self, start: int, end: int) -> Iterator[tuple[Ranges, tuple[int, ...], tuple[int, ...]]]:
        """Yield (box of the view, offsets, sizes) for what of the slot lies in a flat run of the parameter."""
        for run in boxes_of_run(self.view, start, end):
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(run, self.box, strict=True))
            if all(first < last for first, last in common):
                yield common, *self._in_tensor(common)

    def _in_tensor(self, box: Ranges) -> tuple[tuple[int, ...], tuple[int, ...]]:
        offsets, sizes = [], []
        for base, dims in zip(self.offsets, self.merged, strict=True):
            offset, size, step = base, 1, 1
            for dim in reversed(dims):
                (first, last), (begin, end) = box[dim], self.box[dim]
                offset += (first - begin) * step
                size *= last - first
                step *= end - begin
            offsets.append(offset)
            sizes.append(size)
        return tuple(offsets), tuple(sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """A block of a tensor of the model in this rank's memory. memory: a view with the block's elements in order."""

    block: Block
    shape: tuple[int, ...]
    memory: torch.Tensor
    is_owner: bool

    def read(self) -> torch.Tensor:
        """Return the block; a copy where its rows do not lie one after the other."""
        return self.memory.reshape(self.block.sizes)

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Overwrite the block."""
        self.memory.copy_(values.reshape(self.memory.shape))


def held_in(slot: Slot, flat: torch.Tensor, start: int) -> Iterator[Held]:
    """Yield what of a slot lies in ``flat``, the elements of the parameter from ``start`` on."""
    strides = _strides(slot.view)
    for box, offsets, sizes in slot.within(start, start + flat.numel()):
        first = sum(begin * stride for (begin, _), stride in zip(box, strides, strict=True)) - start
        memory = flat.as_strided([last - begin for begin, last in box], strides, flat.storage_offset() + first)
        yield Held(block=Block(slot.name, offsets, sizes), shape=slot.shape, memory=memory, is_owner=slot.is_owner)


def boxes_of_run(shape: Sequence[int], start: int, end: int) -> Iterator[Ranges]:
    """Cut the flat run of elements from ``start`` to ``end`` of a tensor into boxes, in order."""
    if start >= end:
        return
    if not shape:
        yield ()
        return
    step = math.prod(shape[1:])
    first, skipped = divmod(start, step)
    last, rest = divmod(end, step)
    if first == last:
        yield from (((first, first + 1), *inner) for inner in boxes_of_run(shape[1:], skipped, rest))
        return
    if skipped:
        yield from (((first, first + 1), *inner) for inner in boxes_of_run(shape[1:], skipped, step))
        first += 1
    if first < last:
        yield ((first, last), *((0, size) for size in shape[1:]))
    if rest:
        yield from (((last, last + 1), *inner) for inner in boxes_of_run(shape[1:], 0, rest))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
