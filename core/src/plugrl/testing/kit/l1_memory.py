"""L1, memory: counters that rise, fall and remember their peak, for each device, and an end to it."""

from __future__ import annotations

from typing import Any

import torch

from plugrl.testing.kit.checks import check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import Context

MIB = 1 << 20
ROUNDING = 512
"""Bytes to which an allocator may round."""


def _allocated(kit: Context, index: int = 0) -> int:
    module: Any = kit.platform.device_module
    return int(module.memory_allocated(index))


def _hold(kit: Context, num_bytes: int, index: int = 0) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device=kit.device(index))


@check("L1.memory.rises_and_falls", capability="platform.memory.stats", fix="Count in the allocator and its deleter.")
def rises_and_falls(kit: Context) -> None:
    """memory_allocated rises by what is allocated and falls when it is freed, for several sizes."""
    for size in (MIB, 3 * MIB, 16 * MIB):
        before = _allocated(kit)
        held = _hold(kit, size)
        rise = _allocated(kit) - before
        expect(size <= rise <= size + 2 * MIB, "memory_allocated after an allocation", got=f"+{rise}",
               expected=f"+{size}")  # fmt: skip
        del held
        expect_equal(_allocated(kit), before, f"memory_allocated after {size} bytes were freed")


@check("L1.memory.per_device", capability="platform.memory.stats", devices=2, fix="Keep a counter for each device.")
def per_device(kit: Context) -> None:
    """An allocation on one device is counted there and on no other."""
    for index in range(2):
        before = [_allocated(kit, 0), _allocated(kit, 1)]
        held = _hold(kit, 4 * MIB, index)
        rise = [_allocated(kit, number) - before[number] for number in range(2)]
        expect(rise[index] >= 4 * MIB, f"4 MiB on device {index} are not counted there", got=rise)
        expect_equal(rise[1 - index], 0, f"what 4 MiB on device {index} add to device {1 - index}")
        del held


@check("L1.memory.peak", capability="platform.memory.stats", fix="Raise the peak where the counter rises.")
def peak(kit: Context) -> None:
    """max_memory_allocated keeps the highest amount until reset_peak_memory_stats."""
    module: Any = kit.platform.device_module
    module.reset_peak_memory_stats(0)
    before = _allocated(kit)
    expect_equal(int(module.max_memory_allocated(0)), before, "max_memory_allocated after a reset")
    del_me = _hold(kit, 8 * MIB)
    del del_me
    highest = int(module.max_memory_allocated(0)) - before
    expect(8 * MIB <= highest <= 10 * MIB, "max_memory_allocated after 8 MiB came and went", got=f"+{highest}",
           expected=f"+{8 * MIB}")  # fmt: skip
    module.reset_peak_memory_stats(0)
    expect_equal(int(module.max_memory_allocated(0)), _allocated(kit), "max_memory_allocated after another reset")


@check("L1.memory.returns", capability="platform.memory.stats", fix="Something keeps storages, or frees uncounted.")
def returns(kit: Context) -> None:
    """After forward and backward passes whose results are dropped the memory is what it was."""
    def work() -> None:
        layer = torch.nn.Linear(128, 128).to(kit.device())
        for _ in range(3):
            layer(torch.ones(32, 128, device=kit.device())).square().mean().backward()

    work()  # The first pass may set up workspaces that stay.
    before = _allocated(kit)
    for _ in range(3):
        work()
    kit.platform.empty_cache()
    expect_equal(_allocated(kit), before, "memory_allocated after three passes that left nothing")


@check("L1.memory.exact", capability="platform.memory.exact", fix="Count what was asked for, or what was rounded up.")
def exact(kit: Context) -> None:
    """The counter is true to the byte, or to the next multiple of 512, for odd sizes, views and shared storages."""
    for size in (1, 4, 1000, 4096, 12345, MIB + 1):
        before = _allocated(kit)
        held = _hold(kit, size)
        rise = _allocated(kit) - before
        rounded = -(-size // ROUNDING) * ROUNDING
        expect(rise in (size, rounded), f"an allocation of {size} bytes", got=f"+{rise}", expected=f"+{size}")
        view = held.view(-1)[: size // 2]
        expect_equal(_allocated(kit) - before, rise, "what a view adds")
        del held
        expect_equal(_allocated(kit) - before, rise, "what is counted while a view holds the storage")
        del view
        expect_equal(_allocated(kit), before, f"memory_allocated after {size} bytes were freed")


@check("L1.memory.limit", capability="platform.memory.limit",
       fix="Raise c10::OutOfMemoryError from the allocator before anything is counted.")  # fmt: skip
def limit(kit: Context) -> str:
    """More than there is raises torch.OutOfMemoryError that tells of the amount, counts nothing, and work goes on."""
    module: Any = kit.platform.device_module
    free, total = module.mem_get_info(0)
    expect(0 < free <= total, "mem_get_info", got=(free, total), expected="0 < free <= total")
    before = _allocated(kit)
    kept = torch.ones(16, device=kit.device())
    held = _allocated(kit)
    error = expect_raises(torch.OutOfMemoryError, lambda: _hold(kit, total + MIB), f"an allocation of {total + MIB}")
    expect("memory" in str(error).lower(), "the error does not speak of memory", got=error)
    del error
    expect_equal(_allocated(kit), held, "memory_allocated after an allocation that failed")
    kit.platform.empty_cache()
    expect_equal((kept * 2).sum().item(), 32.0, "a result computed after running out of memory")
    del kept
    expect_equal(_allocated(kit), before, "memory_allocated in the end")
    return f"{total / MIB:.0f} MiB per device"
