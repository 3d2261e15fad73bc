"""The whole state of an engine in no layout: what a checkpoint holds, between processes instead of on disk.

A state is cut into blocks of whole tensors. Each rank says which blocks it gives, and which it wants under its own
layout; what lies between is geometry. Checksums are of elements and their places, so that those of any cuts add up to
the same sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from plugrl.errors import PlugRLError

RANDOM = "random/"
"""What the keys of random states begin with; they are of single ranks, all others of the whole engine."""

_MIXER = 0x9E3779B1
_SUM_BITS = 2**32
_FIELD = 2**64
"""A sum holds two numbers of 32 bits, so far apart that one never runs over into the other."""
_CHUNK = 2**18
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


@dataclass(frozen=True)
class StateSpec:
    """A whole tensor without its values; ``dtype`` is torch's name of it: ``float32``."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> StateSpec:
        """Describe a tensor, of a sharded one the whole."""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True)
class Block:
    """A box of a tensor: ``sizes`` elements from ``offsets`` on, in each dimension."""

    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of_whole(cls, key: str, spec: StateSpec) -> Block:
        """Return the block that is a whole tensor."""
        return cls(key, (0,) * len(spec.shape), spec.shape)

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def common(self, other: Block) -> Block | None:
        """Return what two boxes share, None when that is nothing."""
        if self.key != other.key:
            return None
        starts = tuple(max(a, b) for a, b in zip(self.offsets, other.offsets, strict=True))
        ends = tuple(
            min(a + m, b + n)
            for a, m, b, n in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        )
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Block(self.key, starts, sizes) if all(size > 0 for size in sizes) else None

    def within(self, other: Block) -> tuple[slice, ...]:
        """Return where this box lies in the memory of one that holds it."""
        return tuple(slice(a - b, a - b + n) for a, b, n in zip(self.offsets, other.offsets, self.sizes, strict=True))


@dataclass(frozen=True)
class Piece:
    """A block with its values, of a tensor that is whole as ``spec`` says."""

    block: Block
    spec: StateSpec
    tensor: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """One rank's share of a state. All shares together hold every element of every tensor exactly once.

    pieces: they may share memory with the engine, and are valid until it goes on. values: plain values of the whole
    engine, such as the position of the schedule, equal on all ranks.
    """

    pieces: Sequence[Piece]
    values: Mapping[str, Any] = field(default_factory=dict)


class StateParts:
    """The blocks of a state that a rank asked for, to be filled and then read.

    Their memory is written at once: the first write to a page costs more than a copy, and it is not urgent yet.
    """

    def __init__(self, specs: Mapping[str, StateSpec], blocks: Iterable[Block]) -> None:
        self.specs = dict(specs)
        self._held: dict[str, dict[Block, torch.Tensor]] = {}
        for block in blocks:
            held = self._held.setdefault(block.key, {})
            held[block] = torch.empty(block.sizes, dtype=specs[block.key].torch_dtype).zero_()

    def fill(self, block: Block, values: torch.Tensor) -> None:
        """Copy values to where they belong."""
        for held, memory in self._held.get(block.key, {}).items():
            common = block.common(held)
            if common is not None:
                memory[common.within(held)].copy_(values[common.within(block)])

    def read(self, block: Block) -> torch.Tensor:
        """Return the values of a block that was asked for. Raises PlugRLError for another one."""
        try:
            return self._held[block.key][block]
        except KeyError:
            raise PlugRLError(f"{block} was not among the blocks of the state that were asked for.") from None


def whole_pieces(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Piece]:
    """Wrap tensors that are whole."""
    for key, tensor in tensors:
        spec = StateSpec.of(tensor)
        yield Piece(Block.of_whole(key, spec), spec, tensor)


def checksums(pieces: Iterable[Piece]) -> dict[str, int]:
    """Return a sum for each key; :func:`add_checksums` of all ranks depends on the values alone, not on the cuts.

    A change of any word of 32 bits or less changes the sum.
    """
    found: dict[str, int] = {}
    for piece in pieces:
        found[piece.block.key] = _wrapped(found.get(piece.block.key, 0) + _checksum(piece))
    return found


def add_checksums(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add the sums of several ranks."""
    found: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            found[key] = _wrapped(found.get(key, 0) + value)
    return found


def _checksum(piece: Piece) -> int:
    """Return the sum of the words, each times an odd number that belongs to its place in the whole tensor.

    The upper halves have a sum of their own: signs that change in pairs cancel in that of the words.
    """
    host = piece.tensor.detach().cpu().contiguous().reshape(-1)
    words = host.view(_WORDS[host.element_size()])
    per_element = () if host.element_size() <= 4 else (host.element_size() // 4,)
    offsets = piece.block.offsets + (0,) * len(per_element)
    sizes, shape = piece.block.sizes + per_element, piece.spec.shape + per_element
    if sizes[1:] == shape[1:]:
        # Whole rows lie one after another in the whole tensor, which is cut at multiples of the table's length.
        first = offsets[0] * math.prod(shape[1:]) if shape else 0
        return _sum_of_run(words, first)
    places = torch.zeros((), dtype=torch.int64)
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        step = math.prod(shape[dim + 1 :])
        places = places.unsqueeze(-1) + torch.arange(offset, offset + size) * step
    places = places.reshape(-1)
    weights = _weights()[places % _CHUNK] * (places // _CHUNK * _MIXER).bitwise_or_(1).to(torch.int32)
    return _weighed(weights, words, 1)


def _sum_of_run(words: torch.Tensor, first: int) -> int:
    """Return the sum of words that lie at ``first`` and behind it; numbers of 32 bits wrap around, here and there."""
    table, total, done = _weights(), 0, 0
    while done < words.numel():
        chunk, place = divmod(first + done, _CHUNK)
        part = words[done : done + _CHUNK - place]
        total = _wrapped(total + _weighed(table[place : place + part.numel()], part, chunk * _MIXER | 1))
        done += part.numel()
    return total


def _weighed(weights: torch.Tensor, words: torch.Tensor, factor: int) -> int:
    """Return the two sums of words and of their upper halves, times a factor, as one number."""
    wide = words.to(torch.int32)
    low, high = (int(torch.dot(weights, part)) * factor % _SUM_BITS for part in (wide, wide >> 16))
    return low + high * _FIELD


def _wrapped(total: int) -> int:
    """Reduce both sums that stand in a number to 32 bits."""
    return total % _FIELD % _SUM_BITS + total // _FIELD % _SUM_BITS * _FIELD


@functools.cache
def _weights() -> torch.Tensor:
    """Return odd numbers for the places in a chunk, in no regular series: of one, changes that balance would cancel."""
    mixed = torch.arange(_CHUNK)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 15)).mul_(_MIXER) & (_SUM_BITS - 1)
    return (mixed ^ (mixed >> 15)).bitwise_or_(1).to(torch.int32)
