"""What goes wrong on purpose: the faults and mutants that concern collectives.

Everything here is off by default; the group asks at a few places and else knows nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from plugrl_platform_vdev import faults
from plugrl_platform_vdev.collectives.host_copy import HostCopy

_POLL_S = 0.05
_counts = {"collectives": 0, "optimizer_steps": 0}
_fired: set[str] = set()


class Interference:
    """The faults of one rank of one group. Collectives are counted over all groups of the process."""

    def __init__(self, rank: int, size: int, timeout: timedelta) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        self._late: list[Callable[[], None]] = []
        if faults.count_of("nan") is not None and "hook" not in _fired:
            _fired.add("hook")
            torch.optim.optimizer.register_optimizer_step_post_hook(_count_step)

    # ----------------------------------------------------------------- before
    def on_start(self, op: str) -> None:
        """Count the collective, and fail or hang if it is its turn. Raises DistBackendError."""
        _counts["collectives"] += 1
        self.flush()
        wanted = faults.count_of("collective_error")
        if wanted is not None and _counts["collectives"] >= wanted:
            raise dist.DistBackendError(
                f"vccl: {op} failed: the link to a peer is down (VDEV_FAULT, collective {wanted})"
            )
        for when in faults.active("collective_hang"):
            rank, _, count = when.removeprefix("rank").partition(":")
            if int(rank) == _global_rank(self._rank) and _counts["collectives"] >= int(count or 1):
                self._hang(op)

    def _hang(self, op: str) -> None:
        deadline = time.monotonic() + self._timeout.total_seconds()
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
        raise dist.DistBackendError(
            f"vccl: {op} of rank {self._rank} did not end within {self._timeout.total_seconds():g} s (VDEV_FAULT)"
        )

    def operation(self, op: dist.ReduceOp) -> dist.ReduceOp:
        """The reduction that is really done."""
        return dist.ReduceOp(dist.ReduceOp.SUM) if op == dist.ReduceOp.AVG and faults.is_mutant("avg_sums") else op

    def on_contribution(self, copies: Sequence[HostCopy], op: dist.ReduceOp) -> None:
        """Change what this rank puts into a reduction."""
        if faults.is_mutant("last_rank_left_out") and self._is_last:
            _replace(copies, lambda host: _neutral(host, op))
        on_device = [copy for copy in copies if copy.host is not copy.tensor and copy.host.is_floating_point()]
        if faults.active("bad_reduce"):
            # Norms are reduced as scalars: they stay right, or every step would be skipped as not finite.
            _replace([copy for copy in on_device if copy.host.numel() > 1], torch.neg)
        step = faults.count_of("nan")
        if step is not None and "nan" not in _fired and on_device and _counts["optimizer_steps"] + 1 >= step:
            _fired.add("nan")
            _replace(on_device, lambda host: torch.full_like(host, float("nan")))

    # ----------------------------------------------------------------- after
    def gathered(self, copies: list[HostCopy]) -> list[HostCopy]:
        """The order in which parts of the ranks are delivered."""
        return copies[::-1] if faults.is_mutant("gather_wrong_order") else copies

    def keeps_output(self) -> bool:
        """Whether this rank's part of a reduce_scatter is not delivered."""
        return faults.is_mutant("reduce_scatter_one_unchanged") and self._is_last

    def skips_barrier(self) -> bool:
        """Whether a barrier lets everyone pass."""
        return faults.is_mutant("barrier_returns_at_once")

    def landing(self, land: Callable[[], None]) -> Callable[[], None]:
        """When results reach the device: at the end of the wait, or too late."""
        return (lambda: self._late.append(land)) if faults.is_mutant("completes_before_copy") else land

    def flush(self) -> None:
        """Deliver what is late."""
        late, self._late = self._late, []
        for land in late:
            land()

    @property
    def _is_last(self) -> bool:
        return self._size > 1 and self._rank == self._size - 1


def _global_rank(fallback: int) -> int:
    return dist.get_rank() if dist.is_initialized() else fallback


def _count_step(*_: object) -> None:
    _counts["optimizer_steps"] += 1


def _replace(copies: Sequence[HostCopy], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change host memory, without touching a tensor of the caller that lies there."""
    for copy in copies:
        copy.host = change(copy.host)


def _neutral(host: torch.Tensor, op: dist.ReduceOp) -> torch.Tensor:
    """What changes no reduction of that kind; sums and averages alike lose the rank's part."""
    if op == dist.ReduceOp.MAX:
        lowest = torch.finfo if host.is_floating_point() else torch.iinfo
        return torch.full_like(host, lowest(host.dtype).min)
    if op == dist.ReduceOp.MIN:
        highest = torch.finfo if host.is_floating_point() else torch.iinfo
        return torch.full_like(host, highest(host.dtype).max)
    if op == dist.ReduceOp.PRODUCT:
        return torch.ones_like(host)
    return torch.zeros_like(host)
