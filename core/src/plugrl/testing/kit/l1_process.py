"""L1, the process and its surroundings: the mask of devices, pinned memory, memory shared with another process."""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler

import torch

from plugrl.platforms.devices import parse_mask
from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import HOST, Context

_SEEN = """
from plugrl.plugins import load_plugins
load_plugins(quiet=True)
from plugrl.platforms.selection import construct
platform = construct({name!r})
count = platform.device_count()
answer = dict(count=count, available=bool(platform.is_available()))
if count and count == {wanted}:
    answer["names"] = [platform.get_device_uuid(index) for index in range(count)]
    import torch
    platform.device_module
    last = torch.ones(2, device=torch.device(platform.device_name, count - 1)) + 1
    answer["sum"] = last.sum().item()
    answer["index"] = last.device.index
"""


def _ids(kit: Context) -> list[str]:
    """The ids of the devices that this process sees, as its own mask or, without one, as it counts them."""
    visible = parse_mask(os.environ.get(kit.platform.visible_devices_envvar()))
    return visible if visible is not None else [str(index) for index in range(kit.platform.device_count())]


def _seen(kit: Context, mask: str) -> dict[str, object]:
    variable = kit.platform.visible_devices_envvar()
    answer: dict[str, object] = kit.in_process(
        _SEEN.format(name=kit.platform_name, wanted=len(parse_mask(mask) or ())), env={variable: mask}
    )
    return answer


@check("L1.visible_env.named", capability="platform.visible_env")
def named(kit: Context) -> str:
    """The platform names the variable that masks its devices."""
    variable = kit.platform.visible_devices_envvar()
    expect(variable, "visible_devices_envvar() is empty")
    return variable


@check("L1.visible_env.subset", capability="platform.visible_env", devices=2,
       fix="Read the mask when the device is set up, and count only what it names.")  # fmt: skip
def subset(kit: Context) -> None:
    """A process sees the devices that the mask names, in its order: the last one alone, two apart, two reversed."""
    ids = _ids(kit)
    masks = [[ids[-1]], [ids[1], ids[0]]]
    if len(ids) > 2:
        masks.append([ids[0], ids[2]])
    resource = kit.platform.ray_resource_name() or kit.platform.device_name.upper()
    for mask in masks:
        found = _seen(kit, ",".join(mask))
        expect_equal(found["count"], len(mask), f"the number of devices with the mask {','.join(mask)}")
        expect_equal(found["names"], [f"{resource}{item}" for item in mask], f"the devices with the mask {mask}")
        expect_equal((found["sum"], found["index"]), (4.0, len(mask) - 1), "a sum computed on the last visible device")


@check("L1.visible_env.empty", capability="platform.visible_env", fix="An empty mask means no device, not all of them.")
def empty(kit: Context) -> None:
    """With an empty mask a process sees no device."""
    found = _seen(kit, "")
    expect_equal((found["count"], found["available"]), (0, False), "devices and availability with an empty mask")


@check("L1.pin_memory", capability="platform.pin_memory", fix="Register a pinned allocator, and isPinnedPtr.")
def pin_memory(kit: Context) -> None:
    """Pinned host memory says that it is pinned, and travels to the device without blocking."""
    plain = torch.arange(1000.0)
    kit.device()
    pinned = plain.pin_memory()
    expect(pinned.is_pinned(), "is_pinned() of a pinned tensor says no")
    expect(not plain.is_pinned(), "is_pinned() of an ordinary tensor says yes")
    there = pinned.to(kit.device(), non_blocking=True)
    kit.platform.synchronize()
    expect(torch.equal(there.to(HOST), plain), "a pinned tensor arrives changed")


_SHARED = """
import pickle
from pathlib import Path
from plugrl.plugins import load_plugins
load_plugins(quiet=True)
from plugrl.platforms.selection import construct
platform = construct({name!r})
import torch, torch.multiprocessing
platform.device_module
tensor = pickle.loads(Path("shared").read_bytes())
seen = tensor.tolist()
tensor.add_(1)
platform.synchronize()
answer = seen
"""


@check("L1.ipc", capability="platform.ipc", fix="is_ipc_supported must say what torch.multiprocessing can do.")
def ipc(kit: Context) -> None:
    """Another process sees a device tensor without a copy, and what it writes there is seen here."""
    import torch.multiprocessing  # noqa: F401  (registers how tensors are shared)

    expect(kit.platform.is_ipc_supported(), "is_ipc_supported() says no")
    tensor = torch.arange(4.0, device=kit.device())
    (kit.folder / "shared").write_bytes(bytes(ForkingPickler.dumps(tensor)))
    expect_equal(kit.in_process(_SHARED.format(name=kit.platform_name)), [0.0, 1.0, 2.0, 3.0], "the content there")
    kit.platform.synchronize()
    expect_equal(tensor.tolist(), [1.0, 2.0, 3.0, 4.0], "the content here, after the other process added one")
