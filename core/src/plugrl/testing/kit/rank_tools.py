"""What the functions that run on the ranks of a distributed check share: devices, numbers, and a list of findings."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from plugrl.errors import one_line
from plugrl.platforms import get_platform

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
REFUSALS = (RuntimeError, ValueError, NotImplementedError, TypeError)
"""What torch and vendors raise for an argument that they do not take; a timeout is a RuntimeError too."""

Put = Callable[[torch.Tensor], tuple[torch.Tensor, Callable[[], str]]]
"""Puts host values on the device in some form; returns the tensor and what asks afterwards whether others changed."""


class Findings(list[str]):
    """What is wrong, as texts. A rank collects instead of raising: the others wait for it in the next collective."""

    def expect(self, condition: Any, text: str) -> None:
        """Note ``text`` unless the condition holds."""
        if not condition:
            self.append(text)

    def expect_equal(self, got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Note ``what`` unless both hold the same numbers; ``got`` may be on the device."""
        host = got.detach().cpu()
        if host.shape != expected.shape or not torch.equal(host, expected.to(host.dtype)):
            self.append(f"{what}: got {brief(host)}, expected {brief(expected)}")

    def expect_close(self, got: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
        """Note ``what`` unless both agree to ``tolerance``, absolutely and relatively."""
        host = got.detach().cpu().double()
        if host.shape != expected.shape or not torch.allclose(host, expected.double(), rtol=tolerance, atol=tolerance):
            self.append(f"{what}: got {brief(host)}, expected {brief(expected)} within {tolerance:g}")

    @contextmanager
    def catching(self, what: str) -> Iterator[None]:
        """Note an error of the block instead of raising it."""
        try:
            yield
        except REFUSALS as error:
            self.append(f"{what} raises {type(error).__name__}: {one_line(error)} at {_where(error)}")


def device() -> torch.device:
    """Return the torch device of this rank."""
    platform = get_platform()
    if platform.device_name == "cpu":
        return torch.device("cpu")
    return torch.device(platform.device_name, platform.current_device())


def values(rank: int, shape: Sequence[int] = (7,), dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """Return the numbers of a rank: small whole ones, so that sums are exact in every dtype and in every order."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(-8, 9, tuple(shape), generator=generator).to(dtype)


def brief(tensor: torch.Tensor) -> str:
    """Return the first numbers of a tensor and its shape."""
    numbers = tensor.detach().reshape(-1)[:6].tolist()
    more = ", ..." if tensor.numel() > len(numbers) else ""
    return f"[{', '.join(f'{number:g}' for number in numbers)}{more}] of shape {tuple(tensor.shape)}"


# --------------------------------------------------------------------- forms of a tensor
def plain(host: torch.Tensor) -> tuple[torch.Tensor, Callable[[], str]]:
    """Put the values into memory of their own."""
    return host.to(device()), lambda: ""


def part_of_larger(host: torch.Tensor) -> tuple[torch.Tensor, Callable[[], str]]:
    """Put them into the middle of a larger tensor, contiguous and with an offset."""
    before, length = 3, host.numel()
    whole = torch.full((before + length + 4,), 77, dtype=host.dtype).to(device())
    view = whole[before : before + length].view(host.shape)
    view.copy_(host)
    return view, lambda: _neighbours(torch.cat([whole[:before], whole[before + length :]]))


def transposed(host: torch.Tensor) -> tuple[torch.Tensor, Callable[[], str]]:
    """Put them into memory by columns: not contiguous, but without gaps."""
    return host.t().contiguous().to(device()).t(), lambda: ""


def every_second(host: torch.Tensor) -> tuple[torch.Tensor, Callable[[], str]]:
    """Put them into every second place of a larger tensor, so that they are not contiguous."""
    flat = torch.full((2 * host.numel(),), 77, dtype=host.dtype).to(device())
    view = flat[::2]
    view.copy_(host.reshape(-1))
    return view, lambda: _neighbours(flat[1::2])


def _neighbours(others: torch.Tensor) -> str:
    host = others.cpu()
    return "" if bool((host == 77).all()) else f"memory beside the tensor was written: {brief(host)}"


def reduced(parts: Sequence[torch.Tensor], op: dist.ReduceOp.RedOpType) -> torch.Tensor:
    """Return what a reduction of the ranks' numbers gives, computed on the host."""
    stacked = torch.stack(list(parts))
    if op == dist.ReduceOp.MAX:
        return stacked.amax(0)
    total = stacked.double().sum(0)
    return (total / len(parts) if op == dist.ReduceOp.AVG else total).to(parts[0].dtype)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "unknown place"
