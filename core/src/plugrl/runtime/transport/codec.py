"""Trees of tensors as one header and one payload.

The header is a pickle of the tree in which every tensor and array is a place in the payload; it travels between
processes of one run only. The payload is all of them one after the other, each at a multiple of 64 bytes. A decoded
tensor is a view of the payload: what holds the payload is released when the last of them dies. A header that is long
itself is put at the end of the payload.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plugrl.errors import TransportError, one_line

_ALIGN = 64
_LONG_HEADER = 8192
_ELSEWHERE = struct.Struct("!cQQ")
"""Takes the place of a long header: ``@``, which no pickle begins with, and where it is in the payload."""

_decoding = threading.local()

Place = Callable[[str], Any]
"""Type of a device -> where tensors that came from such a device are put here; None leaves them on the host."""

Export = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
"""Tensor of a device -> an importable function and its arguments, which make a tensor of it in another process."""


@dataclass
class Encoded:
    """A tree, ready to be sent. ``device_types`` are those of its tensors, in alphabetical order.

    Whoever holds this keeps the tensors alive.
    """

    header: bytes
    size: int
    device_types: tuple[str, ...] = ()
    exported: list[Any] = field(default_factory=list)
    export: Export | None = None
    _pieces: list[tuple[int, Any]] = field(default_factory=list)

    def write_to(self, target: memoryview) -> None:
        """Copy the tensors into ``target``, which has ``size`` bytes. Other threads run meanwhile."""
        for offset, piece in self._pieces:
            _copy(piece, target[offset : offset + _size(piece)])

    def buffers(self) -> list[bytes | memoryview]:
        """Return the payload as pieces, without a copy of what lies on the host in one piece already."""
        found: list[bytes | memoryview] = []
        end = 0
        for offset, piece in self._pieces:
            if offset > end:
                found.append(bytes(offset - end))
            found.append(_bytes_of(piece))
            end = offset + _size(piece)
        return found


def encode(tree: Any, export: Export | None = None) -> Encoded:
    """Return header and pieces of a tree. Raises TransportError for what no other process can have.

    With ``export`` tensors of devices stay where they are, and travel as what it returns for them.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream, export)
    try:
        pickler.dump(tree)
    except Exception as error:  # Whatever the user's objects raise while they are pickled.
        if isinstance(error, TransportError):
            raise
        raise TransportError(f"{type(tree).__name__} cannot be sent: {one_line(error)}") from error
    header = stream.getvalue()
    if len(header) > _LONG_HEADER:
        header = _ELSEWHERE.pack(b"@", pickler.add(header), len(header))
    kinds = tuple(sorted(pickler.device_types))
    return Encoded(header, pickler.size, kinds, pickler.exported, export, pickler.pieces)


def decode(header: bytes, payload: Any, place: Place | None = None, on_device: Any = None) -> Any:
    """Return the tree. Tensors and arrays are views of ``payload``, those of a device are copied to where they belong.

    ``on_device`` are the bytes that came from device to device; what was exported with them is made of views of it.
    Raises TransportError when the tree needs what this process does not have.
    """
    before = getattr(_decoding, "source", None)
    _decoding.source = (payload, place, on_device)
    if header[:1] == b"@":
        _, offset, size = _ELSEWHERE.unpack(header)
        header = bytes(memoryview(payload)[offset : offset + size])
    try:
        return pickle.loads(header)
    except Exception as error:  # Imports and constructors of the user's classes.
        if isinstance(error, TransportError):
            raise
        raise TransportError(f"What arrived cannot be unpacked here: {one_line(error)}") from error
    finally:
        _decoding.source = before


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, export: Export | None) -> None:
        super().__init__(stream, protocol=5)
        self._export = export
        self.exported: list[Any] = []
        self.size = 0
        self.pieces: list[tuple[int, Any]] = []
        self.device_types: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._reduce_tensor(torch, value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
            array = numpy.ascontiguousarray(value)
            return _take_array, (self.add(array), array.nbytes, value.dtype, value.shape)
        return NotImplemented

    def _reduce_tensor(self, torch: Any, value: Any) -> Any:
        kind = type(value)
        if kind not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            return NotImplemented
        if value.device.type == "meta":
            return NotImplemented
        self.device_types.add(value.device.type)
        plain = value.detach().resolve_conj().resolve_neg()
        grad = bool(value.requires_grad) if kind is torch.nn.Parameter else None
        if self._export is not None and not is_on_host(plain):
            self.exported.append(plain)
            made = self._export(plain)
            return made if grad is None else (_take_parameter, (*made, grad))
        offset = self.add(plain)
        return _take_tensor, (offset, _size(plain), plain.dtype, tuple(plain.shape), plain.device.type, grad)

    def add(self, piece: Any) -> int:
        """Give a tensor, an array or bytes a place in the payload, and return its offset."""
        offset = -(-self.size // _ALIGN) * _ALIGN
        self.size = offset + _size(piece)
        self.pieces.append((offset, piece))
        return offset


def is_on_host(tensor: Any) -> bool:
    """Whether a tensor's memory is the host's."""
    return bool(tensor.device.type == "cpu")


def _size(piece: Any) -> int:
    return len(piece) if isinstance(piece, bytes) else int(piece.nbytes)


def _bytes_of(piece: Any) -> bytes | memoryview:
    if isinstance(piece, bytes):
        return piece
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(piece, torch.Tensor):
        return memoryview(piece.reshape(-1).view("u1"))
    if not piece.numel():
        return b""
    flat = piece.contiguous().cpu().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())


def _copy(piece: Any, target: memoryview) -> None:
    if not len(target):
        return
    if isinstance(piece, bytes):
        target[:] = piece
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(piece, torch.Tensor):
        torch.frombuffer(target, dtype=piece.dtype).view(piece.shape).copy_(piece)
        return
    import numpy

    numpy.copyto(numpy.frombuffer(target, dtype=piece.dtype).reshape(piece.shape), piece)


def _source() -> tuple[Any, Place | None, Any]:
    source = getattr(_decoding, "source", None)
    assert source is not None, "part of a message outside a message"
    return source


def device_payload() -> Any:
    """Return the bytes of the message that is decoded which came from device to device."""
    return _source()[2]


def _take_parameter(function: Callable[..., Any], arguments: tuple[Any, ...], grad: bool) -> Any:
    import torch

    return torch.nn.Parameter(function(*arguments), requires_grad=grad)


def _take_tensor(
    offset: int, size: int, dtype: Any, shape: tuple[int, ...], device_type: str, grad: bool | None
) -> Any:
    import torch

    payload, place, _ = _source()
    if size:
        count = size // dtype.itemsize
        tensor = torch.frombuffer(payload, dtype=dtype, count=count, offset=offset).view(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    device = place(device_type) if place is not None and device_type != "cpu" else None
    if device is not None:
        tensor = tensor.to(device)
    return tensor if grad is None else torch.nn.Parameter(tensor, requires_grad=grad)


def _take_array(offset: int, size: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    import numpy

    payload, _, _ = _source()
    if not size:
        return numpy.empty(shape, dtype=dtype)
    return numpy.frombuffer(payload, dtype=dtype, count=size // dtype.itemsize, offset=offset).reshape(shape)
