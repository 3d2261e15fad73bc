"""Which part of a batch goes from which of m ranks to which of n ranks, and how a batch is cut and put together.

Rank i of W ranks owns the items from ``i * B // W`` up to ``(i + 1) * B // W`` of a batch of B, on both sides; what is
sent is the overlap. B need not divide by either size. Plans are pure, so both sides compute them by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from plugrl.errors import UserError


@dataclass(frozen=True)
class Transfer:
    """A part of the batch on its way.

    Attributes:
        src, dst: the ranks that send and receive it.
        start, stop: its items, counted in the whole batch.
    """

    src: int
    dst: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of items."""
        return self.stop - self.start

    @property
    def key(self) -> str:
        """A name for the transfer that both ends know and that no other of the same plan has."""
        return f"{self.src}-{self.dst}:{self.start}-{self.stop}"


def owned(batch: int, world: int, rank: int) -> range:
    """Return the items of a batch that a rank owns. Raises UserError for sizes and ranks that cannot be."""
    if world < 1 or batch < 0 or not 0 <= rank < world:
        raise UserError(f"Rank {rank} of {world} cannot own a part of {batch} items.")
    return range(rank * batch // world, (rank + 1) * batch // world)


def build_send_plan(batch: int, src_world: int, dst_world: int, rank: int) -> list[Transfer]:
    """Return what ``rank`` of the senders sends, by receiver; empty parts are left out. Raises UserError."""
    mine = owned(batch, src_world, rank)
    return [
        Transfer(rank, dst, part.start, part.stop)
        for dst in range(dst_world)
        if (part := _overlap(mine, owned(batch, dst_world, dst)))
    ]


def build_recv_plan(batch: int, src_world: int, dst_world: int, rank: int) -> list[Transfer]:
    """Return what ``rank`` of the receivers gets, by sender: the mirror of the senders' plans. Raises UserError."""
    mine = owned(batch, dst_world, rank)
    return [
        Transfer(src, rank, part.start, part.stop)
        for src in range(src_world)
        if (part := _overlap(owned(batch, src_world, src), mine))
    ]


def batch_size(batch: Any) -> int:
    """Return the number of items of a nested batch.

    A batch is a tensor, an array or a list of items, or a mapping, tuple or dataclass of batches; None, numbers, texts
    and truth values in it belong to every item. Raises UserError when parts differ in size or nothing has a size.
    """
    sizes = dict(_sizes(batch, ""))
    if not sizes:
        raise UserError("The batch has no field with items, such as a tensor or a list.")
    if len(set(sizes.values())) > 1:
        text = ", ".join(f"{path or '(batch)'} {size}" for path, size in sizes.items())
        raise UserError(f"The fields of the batch differ in their number of items: {text}.")
    return next(iter(sizes.values()))


def split_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut a nested batch (see :func:`batch_size`) into parts of so many items; tensors become views.

    Raises UserError when the sizes do not add up to the batch.
    """
    count = batch_size(batch)
    if sum(sizes) != count or any(size < 0 for size in sizes):
        raise UserError(f"A batch of {count} items cannot be split into {list(sizes)}.")
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [_cut(batch, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def merge_batches(parts: Sequence[Any]) -> Any:
    """Put parts of a batch together, in their order: what :func:`split_batch` cut is whole again.

    Raises UserError when the parts differ in structure or in a value that belongs to every item.
    """
    if not parts:
        raise UserError("There is nothing to merge.")
    return _join(list(parts), "")


# ------------------------------------------------------------------------------------------------------------- nesting
def _overlap(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _children(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a container of batches by name, None for what is no such container."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return dict(enumerate(value))
    if _is_record(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    return None


def _rebuilt(model: Any, children: dict[Any, Any]) -> Any:
    if isinstance(model, Mapping):
        return type(model)(children)  # type: ignore[call-arg]
    if isinstance(model, tuple):
        return type(model)(*children.values()) if hasattr(model, "_fields") else type(model)(children.values())
    return replace(model, **children)


def _sizes(value: Any, path: str) -> list[tuple[str, int]]:
    if _is_array(value):
        return [(path, len(value))] if len(value.shape) else []
    if isinstance(value, list):
        return [(path, len(value))]
    children = _children(value) or {}
    return [found for name, child in children.items() for found in _sizes(child, f"{path}.{name}".lstrip("."))]


def _cut(value: Any, start: int, stop: int) -> Any:
    if (_is_array(value) and len(value.shape)) or isinstance(value, list):
        return value[start:stop]
    children = _children(value)
    if children is None:
        return value
    return _rebuilt(value, {name: _cut(child, start, stop) for name, child in children.items()})


def _join(parts: list[Any], path: str) -> Any:
    first = parts[0]
    kinds = {type(part) for part in parts}
    if len(kinds) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(f"Field {path or '(batch)'} differs between the parts: {found}.")
    if isinstance(first, list):
        return [item for part in parts for item in part]
    if _is_array(first) and len(first.shape):
        return _concatenated(parts, path)
    children = [_children(part) for part in parts]
    if children[0] is None:
        return _common(parts, path)
    names = list(children[0])
    if any(child is None or set(child) != set(names) for child in children):
        raise UserError(f"The parts of {path or 'the batch'} have different fields.")
    joined = {
        name: _join([child[name] for child in children if child is not None], f"{path}.{name}".lstrip("."))
        for name in names
    }
    return _rebuilt(first, joined)


def _concatenated(parts: list[Any], path: str) -> Any:
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        found = ", ".join(f"{tuple(part.shape)} {part.dtype}" for part in parts)
        raise UserError(f"The parts of {path or 'the batch'} do not fit together: {found}.")
    if type(parts[0]).__module__.startswith("torch"):
        import torch

        return torch.cat(parts)
    import numpy

    return numpy.concatenate(parts)


def _common(parts: list[Any], path: str) -> Any:
    """Return the value that every part holds alike; arrays without dimensions are compared by their element."""
    first = parts[0]
    for part in parts[1:]:
        if part is not first and not bool(part == first):
            raise UserError(f"Field {path or '(batch)'} belongs to every item, but differs: {first!r} and {part!r}.")
    return first
