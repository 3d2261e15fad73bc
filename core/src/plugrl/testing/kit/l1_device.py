"""L1, devices: they are counted, chosen, waited for, kept apart, and tensors travel between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from plugrl.testing.kit.checks import CheckFailed, check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import HOST, Context

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
BEYOND = 5
"""How far beyond the last device an index is that must be refused."""


@contextmanager
def current_device(kit: Context, index: int) -> Iterator[None]:
    """Run the block with the device at ``index`` as the current one."""
    before = kit.platform.current_device()
    kit.platform.set_device(index)
    try:
        yield
    finally:
        kit.platform.set_device(before)


# --------------------------------------------------------------------- devices
@check("L1.devices.usable", capability="platform.devices", gate=True, fix="device_count must match what torch sees.")
def usable(kit: Context) -> str:
    """There is a device, and arithmetic on it gives what it should."""
    count = kit.platform.device_count()
    expect(count >= 1, "the platform shows no device", got=count, expected="at least 1")
    expect(kit.platform.is_available(), "is_available() says no although there are devices")
    total = (torch.ones(4, device=kit.device()) * 3).sum().item()
    expect_equal(total, 12.0, "the sum of four threes")
    return f"{count} x {kit.platform.device_name}"


@check("L1.devices.set_and_current", capability="platform.devices", fix="set_device must reach torch's current device.")
def set_and_current(kit: Context) -> None:
    """set_device chooses the device that current_device tells and that tensors without an index land on."""
    for index in range(kit.platform.device_count()):
        with current_device(kit, index):
            expect_equal(kit.platform.current_device(), index, f"current_device() after set_device({index})")
            if not kit.has_virtual_devices:
                placed = torch.empty(2, device=kit.platform.device_name).device.index
                expect_equal(placed, index, f"the device of a tensor that names no index, after set_device({index}),")


@check("L1.devices.placement", capability="platform.devices", fix="The allocator must use the device of the guard.")
def placement(kit: Context) -> None:
    """A tensor lies on the device that was asked for, whichever is the current one, and keeps its content."""
    count = kit.platform.device_count()
    made = [torch.full((16,), float(index), device=kit.device(index)) for index in range(count)]
    for index, tensor in enumerate(made):
        expect_equal(tensor.device, kit.device(index), "the device of a new tensor")
        expect_equal((tensor + 1).device, kit.device(index), "the device of a result")
        expect_equal(tensor.tolist(), [float(index)] * 16, f"the content on device {index} after the others were made")


@check("L1.devices.synchronize", capability="platform.devices")
def synchronize(kit: Context) -> None:
    """synchronize waits for the current device and for any other by its index."""
    for index in range(kit.platform.device_count()):
        value = torch.ones(64, 64, device=kit.device(index))
        for _ in range(8):
            value = value @ value / 64
        kit.platform.synchronize(index)
        expect_equal(value.sum().item(), 4096.0, f"a product computed on device {index}")
    kit.platform.synchronize()


@check("L1.index.platform_refuses", capability="platform.index", fix="Raise ValueError in set_device.")
def platform_refuses(kit: Context) -> None:
    """set_device raises ValueError for an index that no device has, and the current device stays."""
    count, before = kit.platform.device_count(), kit.platform.current_device()
    for index in (count, count + BEYOND, -1):
        expect_raises(ValueError, partial(kit.platform.set_device, index), f"set_device({index})")
        expect_equal(kit.platform.current_device(), before, f"the current device after set_device({index}) was refused")


@check("L1.index.torch_refuses", capability="platform.index", fix="Check the index in the guard and in the allocator.")
def torch_refuses(kit: Context) -> None:
    """torch's factories and copies refuse an index that no device has."""
    name, count = kit.platform.device_name, kit.platform.device_count()
    refusals = (RuntimeError, ValueError, IndexError)
    for index in (count, count + BEYOND):
        device = f"{name}:{index}"
        make, move = partial(torch.ones, 2, device=device), partial(torch.ones(2).to, device)
        expect_raises(refusals, make, f"torch.ones(2, device={device!r}) with {count} devices")
        expect_raises(refusals, move, f"torch.ones(2).to({device!r}) with {count} devices")


# --------------------------------------------------------------------- copies
def samples(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield host tensors of many layouts: a scalar, empty, contiguous, transposed, sliced, expanded."""
    base = torch.arange(48).sub(7).remainder(11).to(dtype).view(6, 8)
    yield base[0, 0]
    yield base[:0]
    yield base
    yield base.t()
    yield base[1::2, ::3]
    yield base[:1].expand(4, 8)


@check("L1.copy.round_trip", capability="platform.copy", fix="_copy_from must respect dtype, strides and offset.")
def round_trip(kit: Context) -> None:
    """Tensors of every dtype and layout come back from the device bit for bit, blocking or not."""
    for dtype in DTYPES:
        for sample in samples(dtype):
            for non_blocking in (False, True):
                there = sample.to(kit.device(), non_blocking=non_blocking)
                back = there.to(HOST, non_blocking=non_blocking)
                kit.platform.synchronize()
                expect(torch.equal(back, sample), f"a {dtype} tensor of shape {tuple(sample.shape)} and strides "
                       f"{sample.stride()} comes back changed", got=back, expected=sample)  # fmt: skip


@check("L1.copy.casts", capability="platform.copy")
def casts(kit: Context) -> None:
    """Copies that change the dtype round as the host does; copies into a part leave the rest alone."""
    sample = torch.linspace(-3, 3, 101)
    for dtype in (torch.bfloat16, torch.float16, torch.int64):
        expect(torch.equal(sample.to(kit.device(), dtype).to(HOST), sample.to(dtype)), f"fp32 to {dtype} on the way")
        expect(torch.equal(sample.to(kit.device()).to(dtype).to(HOST), sample.to(dtype)), f"fp32 to {dtype} there")
    target = torch.zeros(4, 6, device=kit.device())
    target[1:3, ::2].copy_(torch.ones(2, 3))
    expected = torch.zeros(4, 6)
    expected[1:3, ::2] = 1
    expect(torch.equal(target.to(HOST), expected), "a copy into a strided part", got=target.to(HOST), expected=expected)


@check("L1.copy.between_devices", capability="platform.copy", devices=2)
def between_devices(kit: Context) -> None:
    """Tensors travel from each device to the next one bit for bit, and the original stays."""
    count = kit.platform.device_count()
    for index in range(count):
        source, target = kit.device(index), kit.device((index + 1) % count)
        for sample in samples(torch.float32):
            there = sample.to(source)
            moved = there.to(target)
            expect_equal(moved.device, target, f"the device after .to({target})")
            expect(torch.equal(moved.to(HOST), sample), f"{source} to {target} changes a tensor of {sample.stride()}")
            expect(torch.equal(there.to(HOST), sample), f"{source} to {target} changes the original")


# --------------------------------------------------------------------- mixed devices
def _refuses_mixture(first: torch.Tensor, second: torch.Tensor) -> None:
    what = f"{first.device} and {second.device}"
    for name, call in (
        ("addition", lambda: first + second),
        ("a matrix product", lambda: first @ second),
        ("torch.cat", lambda: torch.cat([first, second])),
        ("an operation in place", lambda: first.add_(second)),
    ):
        try:
            call()
        except RuntimeError as error:
            said = str(error).lower()
            expect("device" in said, f"the error of {name} over {what} does not speak of devices", got=error)
        else:
            raise CheckFailed(f"{name} over {what} is accepted, expected RuntimeError")


@check("L1.mixed.host_and_device", capability="platform.mixed_device_error",
       fix="Do not convert operands; torch's own check needs kernels that are not wrapped around it.")  # fmt: skip
def host_and_device(kit: Context) -> None:
    """Operands on host and device together are refused with an error that speaks of devices."""
    _refuses_mixture(torch.ones(2, 2, device=kit.device()), torch.ones(2, 2))


@check("L1.mixed.two_devices", capability="platform.mixed_device_error", devices=2)
def two_devices(kit: Context) -> None:
    """Operands on two devices are refused with an error that speaks of devices."""
    _refuses_mixture(torch.ones(2, 2, device=kit.device(0)), torch.ones(2, 2, device=kit.device(1)))


# --------------------------------------------------------------------- torch.accelerator
@check("L1.accelerator.index", capability="platform.accelerator", fix="Register a device guard and hooks.")
def accelerator_index(kit: Context) -> None:
    """torch.accelerator names this device type, counts the same devices and follows the current one."""
    found = torch.accelerator.current_accelerator()
    expect_equal(found.type if found is not None else None, kit.platform.device_name, "current_accelerator()")
    expect_equal(torch.accelerator.device_count(), kit.platform.device_count(), "torch.accelerator.device_count()")
    for index in range(kit.platform.device_count()):
        with current_device(kit, index):
            expect_equal(torch.accelerator.current_device_index(), index, "torch.accelerator.current_device_index()")
        torch.accelerator.synchronize(index)


@check("L1.accelerator.memory", capability="platform.accelerator", fix="Derive the allocator from DeviceAllocator.")
def accelerator_memory(kit: Context) -> None:
    """torch.accelerator.memory_allocated rises with an allocation and falls with its end."""
    before = torch.accelerator.memory_allocated(0)
    held = torch.ones(1 << 18, device=kit.device())
    rise = torch.accelerator.memory_allocated(0) - before
    expect(rise >= 1 << 20, "memory_allocated after an allocation of 1 MiB", got=f"+{rise}", expected="+1048576")
    del held
    expect_equal(torch.accelerator.memory_allocated(0), before, "memory_allocated after it was freed")
