"""Parameters and buffers under their published names, as the policy holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def published_tensors(policy: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and persistent buffer once, as the policy holds it, under its published name.

    A tied parameter appears under the first of its names that the policy publishes.
    """
    seen: set[int] = set()
    for name, tensor in policy.state_dict(keep_vars=True).items():
        published = policy.published_name(name)
        if published is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield published, tensor


def parameter_names(policy: Any) -> dict[int, str]:
    """Map ``id(parameter)`` to the published name; the module's own name where the policy publishes none."""
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    names.update({id(tensor): published for published, tensor in published_tensors(policy) if id(tensor) in names})
    return names
