"""What two processes on two devices do to each other by the runtime's endpoints."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from plugrl.errors import TransportError
from plugrl.platforms import get_platform
from plugrl.runtime import trace
from plugrl.runtime.rendezvous import join_store, open_store
from plugrl.runtime.transport import Endpoint, EndpointConfig
from plugrl.runtime.transport.device_paths import DevicePaths

DEVICE = "vdev"
LARGE = 2**18
"""Elements of a tensor that does not travel within a message."""


@contextmanager
def pair(rank: int, device: str) -> Iterator[tuple[Endpoint, str]]:
    """An endpoint of this rank on a device, and the address of the other rank's."""
    store, port = open_store("127.0.0.1", 60.0) if rank == 0 else (None, 0)
    shared: list[Any] = [port, tempfile.mkdtemp(prefix="plugrl-t-")]
    dist.broadcast_object_list(shared, src=0)
    config = EndpointConfig(name=f"rank:{rank}", run_id="r", folder=shared[1], secret=b"s" * 32, device=device)
    with Endpoint(config) as endpoint:
        meet = partial(join_store, "127.0.0.1", shared[0], 60.0)
        endpoint.use_devices(DevicePaths.of(get_platform(), rank), meet, timeout_s=60)
        addresses: list[Any] = [None, None]
        dist.all_gather_object(addresses, endpoint.address)
        yield endpoint, addresses[1 - rank]
        dist.barrier()
    dist.barrier()
    del store


def tree(rank: int) -> dict[str, Any]:
    """Tensors of the device in all forms, and some of the host."""
    generator = torch.Generator().manual_seed(rank)
    large = torch.randn(LARGE, generator=generator)
    return {
        "large": large.to(f"{DEVICE}:{rank}"),
        "bf16": [large[:7].to(torch.bfloat16).to(f"{DEVICE}:{rank}")],
        "bool": (torch.tensor([True, False]).to(f"{DEVICE}:{rank}"), None),
        "scalar": torch.tensor(5).to(f"{DEVICE}:{rank}"),
        "empty": torch.empty(0, 3).to(f"{DEVICE}:{rank}"),
        "turned": large[:6].view(2, 3).t().to(f"{DEVICE}:{rank}"),
        "weight": torch.nn.Parameter(large[:4].to(f"{DEVICE}:{rank}")),
        "host": large[:5],
        "text": f"from {rank}",
    }  # fmt: skip


def differences(found: dict[str, Any], expected: dict[str, Any], rank: int) -> list[str]:
    """What of a tree did not arrive as it was sent, on the receiver's device."""
    wrong = []
    for name, value in expected.items():
        got = found[name]
        if isinstance(value, (list, tuple)):
            value, got = value[0], got[0]
        if not isinstance(value, torch.Tensor):
            wrong += [] if got == value else [name]
            continue
        place = "cpu" if name == "host" else f"{DEVICE}:{rank}"
        if type(got) is not type(value) or str(got.device) != place or got.dtype != value.dtype:
            wrong.append(f"{name}: {type(got).__name__} on {got.device}")
        elif not torch.equal(got.detach().cpu(), value.detach().cpu()):
            wrong.append(f"{name}: other values")
    return wrong


def exchanged(rank: int, world: int) -> dict[str, Any]:
    """Both ranks send to each other at once, under several tags, and take the messages in another order."""
    trace.enable()
    with pair(rank, f"VDEV{rank}") as (endpoint, other):
        mine = tree(rank)
        sender = threading.Thread(
            target=lambda: [endpoint.send(other, {**mine, "tag": tag}, tag) for tag in ("a", "b", "c")]
        )
        sender.start()
        endpoint.send(other, torch.ones(4).to(f"{DEVICE}:{rank}"), "small")
        wrong: list[str] = []
        for tag in ("c", "small", "a", "b"):
            found = endpoint.recv(other, tag, timeout=120)
            if tag == "small":
                wrong += [] if str(found.device) == f"{DEVICE}:{rank}" else ["small is not on the device"]
                continue
            wrong += differences(found, {**tree(1 - rank), "tag": tag}, rank)
        sender.join(timeout=60)
        target = torch.zeros(LARGE).to(f"{DEVICE}:{rank}")
        if rank == 0:
            endpoint.send_tensor(other, mine["large"], "in place")
        else:
            endpoint.recv_tensor(other, target, "in place", timeout=60)
            wrong += [] if torch.equal(target.cpu(), tree(0)["large"].cpu()) else ["in place"]
    return {"wrong": wrong, "ways": sorted(set(sent()))}


def sent() -> list[tuple[str, str]]:
    """The ways of what was sent since tracing began, and the reasons; it ends."""
    rows = [event["args"] for event in trace.take() if event["name"] == "transport.send"]
    trace.disable()
    return [(row["transport"], row["reason"]) for row in rows]


def failed(rank: int, world: int) -> list[str]:
    """The collectives fail once at the sender: both ends are told, and the pair goes on by another group."""
    texts: list[str] = []
    with pair(rank, f"VDEV{rank}") as (endpoint, other):
        large = tree(rank)["large"]
        if rank == 0:
            endpoint.send(other, large, "first", acknowledge=True, timeout=60)
            link = endpoint._links._out[next(iter(endpoint._links._out))]  # type: ignore[union-attr]
            link.group.send = _breaks
            try:
                endpoint.send(other, large, "broken", timeout=60)
            except TransportError as error:
                texts.append(str(error))
            endpoint.send(other, large, "after", acknowledge=True, timeout=60)
            texts.append(f"group {link.number}")
        else:
            for tag in ("first", "broken", "after"):
                try:
                    found = endpoint.recv(other, tag, timeout=90)
                except TransportError as error:
                    texts.append(str(error))
                else:
                    texts.append(f"{tag}: {torch.equal(found.cpu(), tree(0)['large'].cpu())}")
    return texts


def on_one_device(rank: int, world: int) -> list[Any]:
    """Two processes that say they are on the same device: never by collectives, and the reason is told."""
    trace.enable()
    with pair(rank, "VDEV0") as (endpoint, other):
        if rank == 0:
            endpoint.send(other, tree(0)["large"])
            try:
                endpoint.send(other, tree(0)["large"], transport="ccl")
            except TransportError as error:
                return [sent()[0][1], str(error)]
        else:
            return [torch.equal(endpoint.recv(other, timeout=60).cpu(), tree(0)["large"].cpu())]
    return []


def _breaks(*_: Any) -> Any:
    raise RuntimeError("the link is down")
