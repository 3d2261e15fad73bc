"""Observations of many scenes, by field: made NumPy arrays of their own, put together, and turned into tensors.

Simulator processes work on NumPy alone, so importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plugrl.errors import EnvContractError

TASK_FIELD = "task_descriptions"
"""The field of instructions: a list of N texts."""

Observations = Mapping[str, Any]


def own_observations(fields: Observations) -> dict[str, Any]:
    """Return the fields as NumPy arrays and lists that share no memory with what was given; None is left out."""
    return {name: _own(value) for name, value in fields.items() if value is not None}


def _own(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(value)
    return np.array(value.detach().cpu() if hasattr(value, "detach") else value, order="C")


def with_rows(fields: Observations, indices: Sequence[int], rows: Observations) -> dict[str, Any]:
    """Return a copy of ``fields`` in which the scenes ``indices`` have ``rows`` [len(indices), ...].

    Raises EnvContractError where both have other fields, or rows of another shape.
    """
    if set(fields) != set(rows):
        raise EnvContractError(f"Observations have the fields {sorted(fields)}, after a restart {sorted(rows)}.")
    made: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            if value.shape[1:] != rows[name].shape[1:] or value.dtype != rows[name].dtype:
                raise EnvContractError(
                    f"The observation {name} is {value.dtype}{list(value.shape[1:])} of a scene, after a restart "
                    f"{rows[name].dtype}{list(rows[name].shape[1:])}."
                )
            made[name] = value.copy()
            made[name][list(indices)] = rows[name]
        else:
            made[name] = list(value)
            for index, row in zip(indices, rows[name], strict=True):
                made[name][index] = row
    return made


def joined(parts: Sequence[Observations]) -> dict[str, Any]:
    """Return the observations of several groups of scenes as those of all, in order; arrays are copied.

    Raises EnvContractError where they have other fields.
    """
    names = set(parts[0])
    for part in parts[1:]:
        if set(part) != names:
            raise EnvContractError(
                f"Observations of some scenes have the fields {sorted(names)}, of others {sorted(part)}."
            )
    made: dict[str, Any] = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        if isinstance(first, np.ndarray):
            made[name] = np.concatenate(values)
        else:
            made[name] = [row for item in values for row in item]
    return made


def as_tensors(fields: Observations) -> dict[str, Any]:
    """Return the fields with each array as a tensor on the same memory; lists are copied."""
    import torch

    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else list(value)
        for name, value in fields.items()
    }
