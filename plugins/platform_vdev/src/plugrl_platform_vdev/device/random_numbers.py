"""Random functions of ``torch.vdev``: one generator per device, its state 16 bytes (the seed, then the offset)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from plugrl_platform_vdev.device.native import Device, index_of, native


class _Generators(Sequence[torch.Generator]):
    """The default generators by logical index."""

    def __len__(self) -> int:
        return int(native().device_count())

    def __getitem__(self, index: int) -> torch.Generator:
        return native().generator(index)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _Generators()


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    default_generators[index_of(None)].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device by chance."""
    default_generators[index_of(None)].seed()


def seed_all() -> None:
    """Seed all devices by one number of chance."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Return the seed of the current device."""
    return default_generators[index_of(None)].initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Return the state of a device, uint8 on the host."""
    return default_generators[index_of(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Restore what :func:`get_rng_state` returned. Raises RuntimeError for a tensor of another shape or type."""
    default_generators[index_of(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore what :func:`get_rng_state_all` returned."""
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)
