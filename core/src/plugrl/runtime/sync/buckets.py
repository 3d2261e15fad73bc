"""Tensors in and out of buckets of bytes: split when they are larger than a bucket, packed when they are small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from plugrl.errors import WeightSyncError

ALIGNMENT = 64
"""Tensors start at multiples of this in a bucket, so that a view of any dtype is possible."""


@dataclass(frozen=True)
class Piece:
    """A part of a tensor in a bucket. All positions in bytes.

    start: position in the tensor, of ``total`` bytes. offset: position in the bucket. length: bytes of the part.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    total: int
    start: int
    offset: int
    length: int

    def to_list(self) -> list[Any]:
        """Return plain values."""
        return [self.name, self.dtype, list(self.shape), self.total, self.start, self.offset, self.length]

    @classmethod
    def from_list(cls, values: list[Any]) -> Piece:
        """Rebuild what :meth:`to_list` gave."""
        name, dtype, shape, *rest = values
        return cls(name, dtype, tuple(shape), *rest)


def pack(
    tensors: Iterable[tuple[str, torch.Tensor]],
    bucket_bytes: int,
    next_buffer: Callable[[], torch.Tensor],
    publish: Callable[[list[Piece], int], None],
) -> int:
    """Copy tensors into buckets, once each, and return how many tensors there were.

    ``next_buffer`` gives an empty bucket (uint8 [bucket_bytes]), ``publish`` takes the pieces of a full one and the
    bytes used. Tensors may be on any device. Raises WeightSyncError when a name comes twice.
    """
    buffer: torch.Tensor | None = None
    pieces: list[Piece] = []
    used = 0
    seen: set[str] = set()
    for name, tensor in tensors:
        if name in seen:
            raise WeightSyncError(f"Tensor {name!r} was sent twice.")
        seen.add(name)
        data = tensor.detach().reshape(-1).view(torch.uint8)
        dtype = str(tensor.dtype).removeprefix("torch.")
        total, start = data.numel(), 0
        while True:
            if buffer is None:
                buffer, pieces, used = next_buffer(), [], 0
            length = min(total - start, bucket_bytes - used)
            buffer[used : used + length].copy_(data[start : start + length])
            pieces.append(Piece(name, dtype, tuple(tensor.shape), total, start, used, length))
            start += length
            used = min(bucket_bytes, -(-(used + length) // ALIGNMENT) * ALIGNMENT)
            if used >= bucket_bytes:
                publish(pieces, used)
                buffer = None
            if start >= total:
                break
    if buffer is not None:
        publish(pieces, used)
    return len(seen)


class Unpacker:
    """Puts tensors together from the buckets of one transfer.

    copy: whether the tensors have memory of their own; ``spare`` offers some to them, by name, which is then used up.
    """

    def __init__(self, copy: bool, spare: dict[str, torch.Tensor] | None = None) -> None:
        self._copy = copy
        self._spare = {} if spare is None else spare
        self._partial: tuple[Piece, torch.Tensor] | None = None
        self.count = 0

    def unpack(self, pieces: Iterable[Piece], buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that the bucket completes; without ``copy`` whole ones are views into it."""
        for piece in pieces:
            data = buffer[piece.offset : piece.offset + piece.length]
            if piece.length == piece.total:
                yield self._finished(piece, self._memory_for(piece).copy_(data) if self._copy else data)
                continue
            whole = self._gather(piece)
            whole[piece.start : piece.start + piece.length].copy_(data)
            if piece.start + piece.length == piece.total:
                self._partial = None
                yield self._finished(piece, whole)

    def _gather(self, piece: Piece) -> torch.Tensor:
        if piece.start == 0:
            self._partial = (piece, self._memory_for(piece))
        if self._partial is None or self._partial[0].name != piece.name:
            raise WeightSyncError(f"A part of tensor {piece.name!r} is missing; the weights are not whole.")
        return self._partial[1]

    def _memory_for(self, piece: Piece) -> torch.Tensor:
        old = self._spare.pop(piece.name, None)
        if old is not None and old.nbytes == piece.total:
            return old.reshape(-1).view(torch.uint8)
        return torch.empty(piece.total, dtype=torch.uint8)

    def _finished(self, piece: Piece, data: torch.Tensor) -> tuple[str, torch.Tensor]:
        self.count += 1
        return piece.name, data.view(getattr(torch, piece.dtype)).reshape(piece.shape)
