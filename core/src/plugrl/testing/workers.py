"""Small workers that tests launch: they answer, fail, hang, and move weights."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from plugrl.errors import ConfigError
from plugrl.runtime.sync import Received, SyncReport, WeightReceiver, WeightRoute, WeightSender, WeightSource, specs_of
from plugrl.runtime.sync.frames import GaveUp
from plugrl.runtime.sync.meeting import PeerClient
from plugrl.runtime.worker import Worker

Shapes = Sequence[tuple[str, Sequence[int], str]]
"""Tensors to make: (name, shape, name of the dtype)."""


class EchoWorker(Worker):
    """Answers with what it was given; has no process group."""

    process_group = False

    def __init__(self, tag: str = ""):
        self.tag = tag

    def echo(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments with the rank, the pid and the constructor's tag."""
        return {"rank": self.rank, "pid": os.getpid(), "tag": self.tag, "args": args, "kwargs": kwargs}

    def environment(self, *names: str) -> dict[str, Any]:
        """Return variables of the process, its torch threads, device and modules that a test asks about."""
        return {
            "env": {name: os.environ.get(name) for name in names},
            "threads": torch.get_num_threads(),
            "device": self.platform.current_device(),
            "modules": [name for name in names if name in sys.modules],
        }

    def place(self) -> dict[str, Any]:
        """Return the worker's device as it was assigned, the mask of the process, and the node."""
        assert self.context.device is not None
        mask = os.environ.get(self.context.device.variable)
        return {**asdict(self.context.device), "mask": mask, "node": self.context.node_name, "rank": self.rank}

    def fail(self, kind: str = "value") -> None:
        """Raise an error: ``value``, ``config`` (a user's), ``gave up`` (a peer did), ``exit`` (SystemExit)."""
        if kind == "config":
            raise ConfigError("data.path: no such thing")
        if kind == "gave up":
            raise GaveUp("The other end gave up.")
        if kind == "exit":
            sys.exit(3)
        raise ValueError(f"wrong on rank {self.rank}")

    def sleep(self, seconds: float) -> int:
        """Sleep and return the rank."""
        time.sleep(seconds)
        return self.rank

    def die(self) -> None:
        """End the process at once, with a last word on stderr."""
        print("the last word", file=sys.stderr, flush=True)
        os._exit(7)


class CollectiveWorker(EchoWorker):
    """As EchoWorker, with a process group."""

    process_group = True

    def sum_of_ranks(self) -> float:
        """Return the sum over ranks of rank + 1, by an all-reduce."""
        import torch.distributed as dist

        value = torch.tensor([self.rank + 1.0])
        self.init_process_group()
        dist.all_reduce(value)
        return float(value)

    def fail_or_reduce(self, failing: int) -> float:
        """Raise on one rank while the others wait for it in a collective."""
        if self.rank == failing:
            raise ValueError("one rank fails")
        return self.sum_of_ranks()


class FailingSetupWorker(EchoWorker):
    """Fails while it is set up."""

    def setup(self) -> None:
        """Raise."""
        raise ConfigError("model.path: nothing there")


class WeightWorker(EchoWorker):
    """Sends or receives tensors made from a seed."""

    def connect(self, route: WeightRoute, index: int | None = None) -> None:
        """Become the sender (no index) or the receiver with an index."""
        self.sender = WeightSender(route) if index is None else None
        self.receiver = WeightReceiver(route, index) if index is not None else None

    def send(self, shapes: Shapes, seed: int, version: int, fail_after: int = -1) -> SyncReport:
        """Send the tensors described by (name, shape, dtype)."""
        assert self.sender is not None
        tensors = make_tensors(shapes, seed)

        def stream() -> Any:
            for count, item in enumerate(tensors.items()):
                if count == fail_after:
                    raise ValueError("the stream broke")
                yield item

        return self.sender.send(WeightSource(tensors=stream(), specs=specs_of(tensors.items())), version)

    def receive(self, shapes: Shapes, seed: int, version: int) -> int:
        """Receive the tensors, compare them bit for bit, and return how many came; -1 when one differs."""
        assert self.receiver is not None
        expected = make_tensors(shapes, seed)
        found: list[bool] = []

        def load(received: Received, version: int) -> None:
            found.extend(same_bits(tensor, expected[name]) for name, tensor in received.tensors)

        self.receiver.apply(version, load)
        return len(found) if all(found) else -1

    def loaded_version(self) -> int:
        """Return the version of the weights in use."""
        assert self.receiver is not None
        return self.receiver.version

    def die_in_transfer(self, route: WeightRoute, index: int, version: int) -> None:
        """Take part in a transfer as a receiver until it has begun, then end the process."""
        client = PeerClient(route.socket_path, index, route.timeout_s)
        client.begin(version)
        client.send({"kind": "ready", "has": [], "held": [], "snapshot": "", "version": -1})
        os._exit(9)


def make_tensors(shapes: Shapes, seed: int) -> Mapping[str, torch.Tensor]:
    """Return random tensors by name from (name, shape, dtype name)."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape, dtype in shapes:
        values = torch.randint(-100, 100, tuple(shape), generator=generator)
        tensors[name] = values.to(getattr(torch, dtype))
    return tensors


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and the same bytes."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).contiguous().view(torch.uint8))
