"""A generator for each device, apart from the host's: a seed and how often it has drawn, in 16 bytes as CUDA's."""

from __future__ import annotations

import struct
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from plugrl_platform_vdev.python_build.state import device_count

_MIX = 0x9E3779B97F4A7C15
_MASK = 2**63 - 1


class DeviceGenerator:
    """The random numbers of one device."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.offset = seed, 0

    def state(self) -> torch.Tensor:
        """Seed and offset, uint8 [16]."""
        return torch.tensor(list(struct.pack("<Qq", self.seed % 2**64, self.offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for anything else."""
        if state.dtype != torch.uint8 or state.numel() != 16:
            raise ValueError(f"the state of a vdev generator is 16 bytes, not {state.numel()} of {state.dtype}")
        self.seed, self.offset = struct.unpack("<Qq", bytes(state.tolist()))

    def next(self) -> int:
        """Return the seed of the next operator, and move on."""
        seed = (self.seed * _MIX + self.offset * 0xBF58476D1CE4E5B9 + 1) & _MASK
        self.offset += 4
        return seed


_generators: dict[int, DeviceGenerator] = {}


def generator(index: int) -> DeviceGenerator:
    """The generator of a device."""
    return _generators.setdefault(index, DeviceGenerator())


def seed_device(index: int, seed: int) -> None:
    """Seed one device."""
    _generators[index] = DeviceGenerator(seed)


def seed_all(seed: int) -> None:
    """Seed all devices."""
    for index in range(device_count()):
        seed_device(index, seed)


@contextmanager
def drawing_on(index: int | None, kwargs: MutableMapping[str, Any]) -> Iterator[None]:
    """Run an operator that draws from the device at ``index``; the host's generator is as before afterwards.

    An explicit ``generator=`` is the caller's own and is used as it is. ``index`` None: nothing is drawn on a device.
    """
    if index is None or kwargs.get("generator") is not None:
        yield
        return
    host = torch.default_generator
    before = host.get_state()
    host.manual_seed(generator(index).next())
    try:
        yield
    finally:
        host.set_state(before)
