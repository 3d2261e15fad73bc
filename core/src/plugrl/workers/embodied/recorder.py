"""Writes down one pass of a slice while it is acted, into memory that is taken once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plugrl.errors import UserError
from plugrl.workers.embodied.messages import Outcome
from plugrl.workers.embodied.trajectory import Trajectory


class Recorder:
    """A pass of at most ``chunks`` chunks. What is not reached, because all scenes had ended, counts as after the end.

    What comes from another process is copied, so that its memory may go.
    """

    def __init__(self, chunks: int, version: int) -> None:
        self._chunks = chunks
        self._version = version
        self._inputs: dict[str, Tensor] = {}
        self._tensors: dict[str, Tensor] = {}
        self._reached = 0

    def acted(self, chunk: int, logprobs: Tensor, values: Tensor | None, inputs: Mapping[str, Any]) -> None:
        """Note what the policy did: logprobs [N, C, D], values [N, V] of the state it saw, inputs [N, ...]."""
        for name, value in inputs.items():
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise UserError(f"forward_inputs of the policy must be tensors, but {name!r} is {kind}.")
            self._store(self._inputs, name, self._chunks, chunk, value)
        self._store(self._tensors, "prev_logprobs", self._chunks, chunk, logprobs.float())
        if values is not None:
            self._store(self._tensors, "prev_values", self._chunks + 1, chunk, as_columns(values))

    def happened(self, chunk: int, outcome: Outcome, bootstrap: Tensor | None) -> None:
        """Note what came of a chunk; ``bootstrap`` [N] are values of last states, 0 where none is wanted."""
        store, chunks = self._store, self._chunks
        store(self._tensors, "rewards", chunks, chunk, outcome.rewards.float())
        store(self._tensors, "executed", chunks, chunk, outcome.executed)
        store(self._tensors, "terminations", chunks + 1, chunk + 1, outcome.terminations)
        store(self._tensors, "truncations", chunks + 1, chunk + 1, outcome.truncations)
        store(self._tensors, "lost", chunks, chunk, outcome.lost)
        if bootstrap is not None:
            store(self._tensors, "bootstrap_values", chunks, chunk, bootstrap.float())
        self._reached = chunk + 1

    def finish(self, values: Tensor | None, *, restarts: bool) -> Trajectory:
        """Return the trajectory; ``values`` [N, V] of the last state. ``restarts``: scenes began anew by themselves."""
        if values is not None:
            self._store(self._tensors, "prev_values", self._chunks + 1, self._reached, as_columns(values))
        tensors = dict(self._tensors)
        lost = tensors.pop("lost")
        tensors["truncations"][self._reached + 1 :] = True
        # A dead simulator ends the episode for the estimator; it is no truncation that a value could stand in for.
        tensors["terminations"][1:] |= lost.unsqueeze(-1)
        tensors["truncations"][1:] &= ~lost.unsqueeze(-1)
        valid = _valid(tensors["terminations"] | tensors["truncations"], lost, restarts=restarts)
        versions = torch.full(tuple(valid.shape), self._version, dtype=torch.int64)
        return Trajectory(**tensors, valid=valid, versions=versions, forward_inputs=self._inputs)

    def _store(self, into: dict[str, Tensor], name: str, length: int, position: int, value: Tensor) -> None:
        if name not in into:
            into[name] = torch.zeros((length, *value.shape), dtype=value.dtype)
        into[name][position].copy_(value)


def as_columns(values: Tensor) -> Tensor:
    """Return values as float [N, V]; a policy may give [N]."""
    return values.float().reshape(values.shape[0], -1)


def _valid(dones: Tensor, lost: Tensor, *, restarts: bool) -> Tensor:
    """Return bool [T, N]: False from the beginning of an episode whose simulator died to that moment.

    Where scenes do not restart, the whole pass of such a scene does not count.
    """
    if not restarts:
        return (~lost.any(0)).expand(lost.shape).clone()
    valid = torch.ones_like(lost)
    for scene in lost.any(0).nonzero().flatten().tolist():
        ended = dones[1:, scene].any(-1).nonzero().flatten().tolist()
        for chunk in lost[:, scene].nonzero().flatten().tolist():
            begin = max((end + 1 for end in ended if end < chunk), default=0)
            valid[begin : chunk + 1, scene] = False
    return valid
