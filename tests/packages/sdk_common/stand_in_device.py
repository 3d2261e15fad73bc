"""What a vendor's extension of torch adds, without a device: the module ``torch.<type>``, as its makers document it.

It counts and selects, seeds and measures; tensors cannot be made on it. ``STAND_IN_DEVICES`` says how many there are.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch

calls: list[str] = []
"""Names of the functions that were called, in order."""


def register(name: str, *, capability: tuple[int, int] | None = None, own_type: bool = True) -> ModuleType:
    """Add ``torch.<name>``. ``own_type``: torch does not know the device type by itself."""
    module = ModuleType(f"torch.{name}")
    state: dict[str, Any] = {"device": 0}

    def record(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(function.__name__)
            return function(*args, **kwargs)

        setattr(module, function.__name__, call)
        return call

    @record
    def device_count() -> int:
        return int(os.environ.get("STAND_IN_DEVICES", "2"))

    @record
    def is_available() -> bool:
        return device_count() > 0

    @record
    def current_device() -> int:
        return state["device"]

    @record
    def set_device(device: int) -> None:
        state["device"] = int(device)

    @record
    def synchronize(device: int | None = None) -> None: ...

    @record
    def manual_seed(seed: int) -> None:
        state["seed"] = seed

    @record
    def manual_seed_all(seed: int) -> None:
        state["seed"] = seed

    @record
    def get_rng_state(device: int | None = None) -> torch.Tensor:
        return torch.tensor([state.get("seed", 0)], dtype=torch.uint8)

    @record
    def set_rng_state(value: torch.Tensor, device: int | None = None) -> None:
        state["seed"] = int(value[0])

    @record
    def empty_cache() -> None: ...

    @record
    def is_bf16_supported() -> bool:
        return True

    if capability is not None:

        @record
        def get_device_capability(device: int | None = None) -> tuple[int, int]:
            return capability

    if own_type:
        torch.utils.rename_privateuse1_backend(name)
        torch._register_device_module(name, module)
    else:
        setattr(torch, name, module)
        sys.modules[f"torch.{name}"] = module
    return module
