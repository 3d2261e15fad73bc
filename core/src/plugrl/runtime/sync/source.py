"""What is synchronised: named tensors, what is known of them before they come, and the cast on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from plugrl.errors import WeightSyncError

Tensors = Iterable[tuple[str, torch.Tensor]]
"""Names with full tensors on any device."""

_SHOWN = 5


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values; ``dtype`` is torch's name of it: ``float32``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        """Describe a tensor."""
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return torch.Size(self.shape).numel() * self.torch_dtype.itemsize

    def cast(self, dtype: torch.dtype | None) -> TensorSpec:
        """Return what :func:`cast_floats` makes of such a tensor."""
        if dtype is None or not self.torch_dtype.is_floating_point:
            return self
        return replace(self, dtype=str(dtype).removeprefix("torch."))


@dataclass(frozen=True, kw_only=True)
class WeightSource:
    """The weights of one version at the sender.

    tensors: each name once; taken from the iterator as there is room. frozen: names whose values never change, which
    may be left out where the receivers have them. specs: what ``tensors`` will yield, where that is known.
    """

    tensors: Tensors
    frozen: frozenset[str] = frozenset()
    specs: tuple[TensorSpec, ...] | None = None

    @classmethod
    def of(cls, state: Mapping[str, torch.Tensor]) -> WeightSource:
        """Wrap tensors that are all there."""
        return cls(tensors=state.items(), specs=specs_of(state.items()))

    def cast(self, dtype: torch.dtype | None) -> WeightSource:
        """Return the source with floating-point tensors in ``dtype``; None leaves them as they are."""
        if dtype is None:
            return self
        specs = None if self.specs is None else tuple(spec.cast(dtype) for spec in self.specs)
        return replace(self, tensors=cast_floats(self.tensors, dtype), specs=specs)


def specs_of(tensors: Tensors) -> tuple[TensorSpec, ...]:
    """Describe all tensors of a stream, which is consumed."""
    return tuple(TensorSpec.of(name, tensor) for name, tensor in tensors)


def cast_floats(tensors: Tensors, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Cast floating-point tensors; whole numbers and truth values pass as they are."""
    for name, tensor in tensors:
        yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def check_keys(sent: Sequence[TensorSpec], wanted: Sequence[TensorSpec], receiver: str) -> None:
    """Raise WeightSyncError unless both sides have the same names with the same shapes; dtypes may differ."""
    have = {spec.name: spec.shape for spec in sent}
    want = {spec.name: spec.shape for spec in wanted}
    shapes = [
        f"{name} ({list(have[name])} against {list(want[name])})"
        for name in have
        if name in want and have[name] != want[name]
    ]
    lists = {
        f"only the sender has {{}}, which {receiver} lacks": [name for name in have if name not in want],
        f"only {receiver} has {{}}, which the sender lacks": [name for name in want if name not in have],
        "{} differ in shape": shapes,
    }
    found = [text.format(_some(names)) for text, names in lists.items() if names]
    if found:
        raise WeightSyncError(f"The weights do not fit, nothing was sent: {'; '.join(found)}.")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
