"""Observations of many scenes, by field: turned into tensors of their own, picked from, and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from plugrl.errors import PlugRLError

TENSOR_FIELDS = ("main_images", "wrist_images", "extra_view_images", "states")
"""Fields every policy understands: images uint8 [N, H, W, 3] (several views [N, V, H, W, 3]), states float32 [N, S]."""

TASK_FIELD = "task_descriptions"
"""The field of instructions: a list of N texts."""

Observations = Mapping[str, Any]


def own_observations(fields: Observations) -> dict[str, Any]:
    """Return the fields as tensors on the host and lists that share no memory with what was given."""
    return {name: _own(value) for name, value in fields.items() if value is not None}


def _own(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    return list(value)


def with_rows(fields: Observations, indices: Sequence[int], rows: Observations) -> dict[str, Any]:
    """Return a copy of ``fields`` in which the scenes ``indices`` have ``rows`` [len(indices), ...].

    Raises PlugRLError where both have other fields.
    """
    if set(fields) != set(rows):
        raise PlugRLError(f"Observations have the fields {sorted(fields)}, those after a restart {sorted(rows)}.")
    where = torch.as_tensor(list(indices), dtype=torch.int64)
    made: dict[str, Any] = {}
    for name, value in fields.items():
        made[name] = value.clone() if isinstance(value, torch.Tensor) else list(value)
        if isinstance(value, torch.Tensor):
            made[name][where] = rows[name]
        else:
            for index, row in zip(indices, rows[name], strict=True):
                made[name][index] = row
    return made


def joined(parts: Sequence[Observations]) -> dict[str, Any]:
    """Return the observations of several groups of scenes as those of all, in order.

    Raises PlugRLError where they have other fields.
    """
    names = set(parts[0])
    for part in parts[1:]:
        if set(part) != names:
            raise PlugRLError(f"Observations of some scenes have the fields {sorted(names)}, of others {sorted(part)}.")
    made: dict[str, Any] = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        made[name] = torch.cat(values) if isinstance(first, torch.Tensor) else [row for item in values for row in item]
    return made
