"""``torch.vdev`` of the Python build: the names of the C++ build, as far as there is something behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from plugrl_platform_vdev.python_build import random_numbers, state
from plugrl_platform_vdev.python_build.streams import Event, Stream


def _index(device: Any = None) -> int:
    """The index in an int, a text or a torch.device; that of the current device for None."""
    if device is None:
        return state.current_device()
    if isinstance(device, int):
        return state.check_index(device)
    index = torch.device(device).index
    return state.current_device() if index is None else state.check_index(index)


class _DeviceContext:
    """Use a device inside the block."""

    def __init__(self, device: Any) -> None:
        self._index = _index(device)

    def __enter__(self) -> None:
        self._before = state.set_current_device(self._index)

    def __exit__(self, *_: object) -> None:
        state.set_current_device(self._before)


def make_module() -> ModuleType:
    """Build the module that becomes ``torch.vdev``."""
    module = ModuleType("torch.vdev", "The device vdev, without a compiler.")
    functions: dict[str, Any] = {
        "is_available": lambda: state.device_count() > 0,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": state.device_count,
        "current_device": state.current_device,
        "set_device": lambda device: state.set_current_device(_index(device)) and None,
        "device": _DeviceContext,
        "synchronize": lambda device=None: _index(device) and None,
        "manual_seed": lambda seed: random_numbers.seed_device(state.current_device(), int(seed)),
        "manual_seed_all": lambda seed: random_numbers.seed_all(int(seed)),
        "get_rng_state": lambda device=None: random_numbers.generator(_index(device)).state(),
        "set_rng_state": lambda value, device=None: random_numbers.generator(_index(device)).set_state(value),
        "empty_cache": lambda: None,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "is_bf16_supported": lambda: True,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda device=None: Stream(device=_index(device)),
        "default_stream": lambda device=None: Stream(device=_index(device)),
        "set_stream": lambda stream: None,
        "stream": _stream,
        "BUILD": "python",
    }
    for name, value in functions.items():
        setattr(module, name, value)
    return module


@contextmanager
def _stream(stream: Any) -> Iterator[None]:
    """Work in the block is done in order at once, whatever the stream."""
    yield
