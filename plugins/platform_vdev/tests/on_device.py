"""What the tests do on the device, in processes of their own: see :mod:`vdev_process`. Results are plain values."""

from __future__ import annotations

import copy
import importlib
import io
import os
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from device_cases import CASES, Case

MIB = 1 << 20


def make() -> Any:
    """Make the device and return ``torch.vdev``."""
    importlib.import_module("plugrl_platform_vdev.device")
    return torch.get_device_module("vdev")


def error_of(call: Callable[[], Any]) -> str:
    """Return ``Type: message`` of what the call raises, an empty text when it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --------------------------------------------------------------------- operators
def deviations(names: list[str]) -> dict[str, str]:
    """Run cases on the host and on device 1; return what differs, by case."""
    make()
    return {name: text for name in names if (text := _deviation(CASES[name]))}


def _deviation(case: Case) -> str:
    torch.manual_seed(5)
    arguments = case.arguments()
    there = [_to(item, "vdev:1") for item in arguments]
    try:
        expected, got = case.call(*arguments), case.call(*there)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return _compare(expected, got) or _compare(arguments if case.in_place else None, there if case.in_place else None)


def _to(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        moved = value.detach().clone().to(device)
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, list | tuple):
        return type(value)(_to(item, device) for item in value)
    return value


def _compare(expected: Any, got: Any) -> str:
    if isinstance(expected, torch.Tensor):
        if got.device != torch.device("vdev:1") or got.dtype != expected.dtype or got.shape != expected.shape:
            return f"{got.device} {got.dtype} {tuple(got.shape)} for {expected.dtype} {tuple(expected.shape)}"
        if got.stride() != expected.stride():
            return f"strides {got.stride()} for {expected.stride()}"
        same = torch.allclose(got.cpu(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)
        return "" if same else f"{got.cpu().tolist()} for {expected.tolist()}"
    if isinstance(expected, list | tuple):
        return next(filter(None, map(_compare, expected, got)), "")
    return "" if expected == got else f"{got!r} for {expected!r}"


def refusals() -> dict[str, str]:
    """Return the error texts of what must not work."""
    vdev = make()
    here, there, host = torch.ones(2, 2, device="vdev:0"), torch.ones(2, 2, device="vdev:1"), torch.ones(2, 2)
    calls: dict[str, Callable[[], Any]] = {
        "two devices": lambda: here + there,
        "two devices, product": lambda: here @ there,
        "host": lambda: here + host,
        "host first": lambda: host @ here,
        "host in a list": lambda: torch._foreach_add([here, host], [here, here]),
        "host's tensor, device's indices": lambda: host[torch.tensor([0], device="vdev")],
        "factory": lambda: torch.ones(2, device="vdev:7"),
        "moved": lambda: host.to("vdev:2"),
        "chosen": lambda: vdev.set_device(2),
        "context": lambda: vdev.device(5).__enter__(),
        "synchronized": lambda: vdev.synchronize(2),
        "generator": lambda: torch.Generator("vdev:9"),
        "host's generator": lambda: torch.rand(2, device="vdev", generator=torch.Generator()),
        "other device's generator": lambda: torch.rand(2, device="vdev:0", generator=torch.Generator("vdev:1")),
        "memory": lambda: vdev.memory_allocated(3),
        "state": lambda: vdev.set_rng_state(torch.zeros(8, dtype=torch.uint8)),
        "numpy": lambda: here.numpy(),
        "another type": lambda: vdev.set_device("cpu"),
        "shape": lambda: here @ torch.ones(3, 2, device="vdev:0"),
    }
    return {name: error_of(call) for name, call in calls.items()}


def autocast() -> dict[str, str]:
    """Return the types that operators answer in under autocast."""
    make()
    inputs, model = torch.randn(3, 4, device="vdev"), torch.nn.Linear(4, 5).to("vdev")
    with torch.autocast("vdev", dtype=torch.bfloat16):
        product = model(inputs)
        types = {
            "linear": product.dtype,
            "softmax": product.softmax(-1).dtype,
            "sum": product.sum().dtype,
            "sum with a type": product.sum(dtype=torch.bfloat16).dtype,
            "widest": torch.addcmul(product, product.float(), product).dtype,
            "double": (inputs.double() @ inputs.double().T).dtype,
        }
        product.float().pow(2).mean().backward()
    types["gradient"] = model.weight.grad.dtype
    with torch.autocast("vdev", dtype=torch.float16):
        types["fp16"] = model(inputs).dtype
    types["outside"] = model(inputs).dtype
    return {name: str(dtype) for name, dtype in types.items()}


# --------------------------------------------------------------------- memory
def accounting() -> dict[str, Any]:
    """Return counts of bytes along the life of some tensors, all on device 1."""
    vdev = make()
    found: dict[str, Any] = {}
    tensor = torch.empty(1000, device="vdev:1")
    found["empty"] = (vdev.memory_allocated(0), vdev.memory_allocated(1))
    product = tensor + 1
    found["result"] = vdev.memory_allocated(1)
    view = product[10:20]
    product.add_(1).mul_(2)
    del product
    found["view keeps"] = vdev.memory_allocated(1)
    del view
    found["freed"] = (vdev.memory_allocated(1), vdev.max_memory_allocated(1))
    vdev.reset_peak_memory_stats(1)
    found["new peak"] = vdev.max_memory_allocated(1)
    tensor.resize_(2000)
    found["grown"] = vdev.memory_allocated(1)
    tensor.untyped_storage().resize_(0)
    found["emptied"] = vdev.memory_allocated(1)
    tensor.untyped_storage().resize_(8000)
    found["filled"] = (vdev.memory_allocated(1), tensor.fill_(1).sum().item())
    statistics = vdev.memory_stats(1)
    found["accelerator"] = torch.accelerator.memory_allocated(1) == statistics["allocated_bytes.all.current"]
    free, total = vdev.mem_get_info(1)
    found["free"] = (total - free, total == vdev.get_device_properties(1).total_memory)
    with vdev.device(1):
        found["odd"] = torch.empty(3, dtype=torch.uint8, device="vdev").untyped_storage().nbytes()
    vdev.empty_cache()
    return found


def out_of_memory() -> dict[str, Any]:
    """Fill a device that has 1 MiB, by allocations and by results, and go on."""
    vdev = make()
    half = torch.zeros(MIB // 8, device="vdev:1")
    texts = {
        "allocation": error_of(lambda: torch.zeros(MIB // 4, device="vdev:1")),
        "result": error_of(lambda: torch.cat([half, half[:4], half])),
        "grown": error_of(lambda: torch.empty(0, device="vdev:1").resize_(MIB)),
    }
    on_other = torch.zeros(MIB // 4, device="vdev:0")
    after = (half[:4] + 1).sum().item()
    return {**texts, "other": on_other.numel(), "after": after, "ooms": vdev.memory_stats(1)["num_ooms"]}


def allocations(sizes: list[int]) -> list[str]:
    """Allocate one tensor after the other and return the errors."""
    make()
    kept: list[torch.Tensor] = []

    def allocate(size: int) -> None:
        kept.append(torch.empty(size, dtype=torch.uint8, device="vdev"))

    return [error_of(partial(allocate, size)) for size in sizes]


def freed_bytes() -> int:
    """Return what is counted after a tensor came and went."""
    vdev = make()
    torch.empty(100, device="vdev").mul_(2)
    return int(vdev.memory_allocated())


def pinned() -> dict[str, bool]:
    """Return what knows that it is pinned."""
    make()
    plain = torch.arange(4)
    copied = plain.pin_memory()
    return {
        "plain": plain.is_pinned(),
        "pinned": copied.is_pinned(),
        "part": copied[2:].is_pinned(),
        "made": torch.empty(3, pin_memory=True).is_pinned(),
        "arrives": torch.equal(copied.to("vdev:1", non_blocking=True).cpu(), plain),
    }


# --------------------------------------------------------------------- random numbers
def random_numbers() -> dict[str, Any]:
    """Draw in every way that torch knows, twice from one seed; return which differ, and what moved that should not."""
    vdev = make()
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    draws: dict[str, Callable[[str], torch.Tensor]] = {
        "randn": lambda d: torch.randn(5, device=d),
        "rand": lambda d: torch.rand(5, device=d),
        "randint": lambda d: torch.randint(100, (5,), device=d),
        "randperm": lambda d: torch.randperm(20, device=d),
        "normal": lambda d: torch.normal(torch.zeros(5, device=d), torch.ones(5, device=d)),
        "poisson": lambda d: torch.poisson(torch.full((9,), 50.0, device=d)),
        "bernoulli": lambda d: torch.bernoulli(torch.full((40,), 0.5, device=d)),
        "exponential": lambda d: torch.empty(5, device=d).exponential_(),
        "multinomial": lambda d: torch.multinomial(probabilities.to(d), 40, replacement=True),
        "dropout": lambda d: F.dropout(torch.ones(40, device=d), 0.5),
        "gumbel": lambda d: F.gumbel_softmax(torch.zeros(5, device=d)),
        "attention": lambda d: F.scaled_dot_product_attention(*[torch.ones(1, 1, 9, 4, device=d)] * 3, dropout_p=0.5),
    }
    found: dict[str, Any] = {}
    host_before, other_before = torch.get_rng_state(), vdev.get_rng_state(0)
    for name, draw in draws.items():
        states = []
        for _ in range(2):
            with vdev.device(1):
                vdev.manual_seed(3)
                states.append((draw("vdev:1").cpu(), draw("vdev:1").cpu()))
        again, fresh = torch.equal(states[0][0], states[1][0]), not torch.equal(*states[0])
        found[name] = (again, fresh)
    found["host untouched"] = torch.equal(host_before, torch.get_rng_state())
    found["other device untouched"] = torch.equal(other_before, vdev.get_rng_state(0))
    return found


def generators() -> dict[str, Any]:
    """Return what holds of states and generators."""
    vdev = make()
    torch.manual_seed(11)
    state = vdev.get_rng_state(1)
    first = torch.rand(3, device="vdev:1")
    vdev.set_rng_state(state, 1)
    own = torch.Generator("vdev:1").manual_seed(11)
    with torch.random.fork_rng(devices=[0, 1], device_type="vdev"):
        torch.rand(1, device="vdev:1")
    checkpointed = torch.ones(50, device="vdev", requires_grad=True)
    output = torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x, 0.5), checkpointed, use_reentrant=False)
    output.sum().backward()
    return {
        "state": (state.device.type, state.numel(), int.from_bytes(state[:8].numpy().tobytes(), "little")),
        "restored": torch.equal(first, torch.rand(3, device="vdev:1")),
        "own": torch.equal(first, torch.rand(3, device="vdev:1", generator=own)),
        "devices differ": not torch.equal(vdev.get_rng_state(0), vdev.get_rng_state(1)),
        "seeds": {generator.initial_seed() for generator in vdev.default_generators},
        "recomputed dropout": torch.equal(checkpointed.grad, output.detach()),
    }


def stale_draws() -> bool:
    """Whether two draws give the same."""
    make()
    return torch.equal(torch.rand(3, device="vdev"), torch.rand(3, device="vdev"))


# --------------------------------------------------------------------- devices
def visible() -> tuple[int, list[int], bool, list[str]]:
    """Return count, physical ids, availability and uuids."""
    vdev = make()
    count = vdev.device_count()
    uuids = [vdev.get_device_properties(index).uuid for index in range(count)]
    return count, [vdev.physical_device(index) for index in range(count)], vdev.is_available(), uuids


def current_devices() -> dict[str, Any]:
    """Return which device is the current one, along contexts and threads."""
    vdev = make()
    found: dict[str, Any] = {"untouched": vdev.is_initialized()}
    vdev.set_device("vdev:1")
    found["chosen"] = (vdev.current_device(), str(torch.ones(1, device="vdev").device), vdev.is_initialized())
    with vdev.device(0):
        found["inside"] = (vdev.current_device(), torch.accelerator.current_device_index())
    with torch.device("vdev:0"):
        found["default"] = str(torch.ones(1).device)
    with vdev.device_of(torch.ones(1)):
        found["of the host"] = vdev.current_device()
    thread = threading.Thread(target=lambda: found.update(thread=vdev.current_device()))
    thread.start()
    thread.join()
    found["after"] = vdev.current_device()
    return found


def streams() -> dict[str, Any]:
    """Return what holds of streams and events."""
    vdev = make()
    stream, start, end = vdev.Stream(device=1, priority=-1), vdev.Event(enable_timing=True), vdev.Event()
    found: dict[str, Any] = {"default": vdev.current_stream(1) == vdev.default_stream(1)}
    start.record(vdev.current_stream(1))
    with vdev.stream(stream):
        found["inside"] = (vdev.current_stream() == stream, vdev.current_device())
        tensor = torch.ones(4, device="vdev") * 2
    tensor.record_stream(stream)
    end.record(stream)
    end.wait(vdev.default_stream(1))
    stream.wait_stream(vdev.default_stream(1))
    stream.synchronize()
    found["outside"] = vdev.current_stream(1) == vdev.default_stream(1)
    found["done"] = (stream.query(), end.query(), start.elapsed_time(end) >= 0)
    found["refused"] = error_of(lambda: torch.ones(1, device="vdev:0").record_stream(stream))
    return found


def saved(folder: str) -> dict[str, Any]:
    """Return devices and values after every way of saving."""
    make()
    tensor = torch.arange(3.0, device="vdev:1")
    torch.save({"a": tensor, "b": tensor[1:]}, Path(folder) / "file.pt")
    buffer = io.BytesIO(pickle.dumps(tensor))
    loaded, on_host = torch.load(Path(folder) / "file.pt"), torch.load(Path(folder) / "file.pt", map_location="cpu")
    moved = torch.load(Path(folder) / "file.pt", map_location="vdev:0")
    return {
        "native": (str(loaded["a"].device), loaded["a"].tolist()),
        "shared": loaded["a"].untyped_storage().data_ptr() == loaded["b"].untyped_storage().data_ptr(),
        "host": str(on_host["a"].device),
        "moved": str(moved["a"].device),
        "pickle": str(pickle.load(buffer).device),
        "deepcopy": str(copy.deepcopy(torch.nn.Linear(2, 2).to("vdev:1")).weight.device),
        "repr": repr(tensor),
    }


def forked() -> tuple[bool, int]:
    """Use the device, fork, and use it there: return whether the child computed, and its exit code."""
    make()
    tensor = torch.ones(3, device="vdev:1")
    child = os.fork()
    if child == 0:
        os._exit(int((tensor * 2).sum().item()))
    return tensor.sum().item() == 3, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --------------------------------------------------------------------- faults
def step() -> str:
    """Take a training step; return the error, or ``"done"``."""

    def run() -> None:
        model = torch.nn.Linear(4, 2).to("vdev")
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(3, 4, device="vdev")).pow(2).mean().backward()
        optimizer.step()

    make()
    return error_of(run) or "done"


def calls_until_lost(number: int) -> list[str]:
    """Return the errors of a number of additions."""
    make()
    tensor = torch.ones(2, device="vdev")
    return [error_of(lambda: tensor.add_(1)) for _ in range(number)]


def made() -> str:
    """Make the device; return the error, or ``"made"``."""
    return error_of(make) or "made"


def renamed_by_another() -> str:
    """Make the device where another plugin holds torch's place for it."""
    torch.utils.rename_privateuse1_backend("other")
    return error_of(make)


def seconds_of(device: str, number: int) -> float:
    """Return how long a number of additions take."""
    import time

    make()
    tensor = torch.ones(2, device=device)
    start = time.monotonic()
    for _ in range(number):
        tensor.add_(1)
    return time.monotonic() - start
