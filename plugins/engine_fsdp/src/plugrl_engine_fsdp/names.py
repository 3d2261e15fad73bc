"""Parameters and buffers under their published names, as the policy holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_WRAPPER = "_fsdp_wrapped_module."
"""What FSDP1 adds to the path of a unit."""


def clean_name(name: str) -> str:
    """The name of a parameter as the policy defines it, whatever wrappers stand around its modules."""
    return name.replace(_WRAPPER, "")


def held_tensors(policy: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and persistent buffer under each of its names, in the order of ``state_dict``.

    Unlike that it runs no hooks, by which wrappers would gather what is sharded.
    """
    for path, module in policy.named_modules(remove_duplicate=False):
        prefix = clean_name(f"{path}." if path else "")
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, buffer


def published_tensors(policy: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and persistent buffer once, as the policy holds it, under its published name.

    A tied parameter appears under the first of its names that the policy publishes.
    """
    seen: set[int] = set()
    for name, tensor in held_tensors(policy):
        published = policy.published_name(name)
        if published is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield published, tensor


def parameter_names(policy: Any) -> dict[int, str]:
    """Map ``id(parameter)`` to the published name; the module's own name where the policy publishes none."""
    names = {id(parameter): clean_name(name) for name, parameter in policy.named_parameters()}
    names.update({id(tensor): published for published, tensor in published_tensors(policy) if id(tensor) in names})
    return names
