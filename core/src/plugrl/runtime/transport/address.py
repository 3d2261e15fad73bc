"""Who an endpoint is and where it listens, as one line of JSON that other processes are given."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from plugrl.errors import TransportError


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """What an endpoint is opened with.

    Attributes:
        name: who this is, for messages: ``actor:0``.
        run_id: the run that endpoints meet in.
        folder: folder for the Unix socket; only its owner may enter it. It exists on this node.
        node: id of this node: endpoints with the same one share memory.
        host: address of this node that others reach it at; loopback keeps other nodes out.
        secret: known to the processes of the run alone; both ends of every connection prove that they know it.
        flows: connections of a pair; with two or more, small messages never wait behind large ones.
        inline_bytes: payloads up to this size travel within the message.
        memory_bytes: shared memory that messages on their way may hold; 0 takes a quarter of the machine's memory.
        window_bytes: bytes that a peer may be sent before it has received them.
        device: id of the physical device, unique in the world; endpoints with the same one may share its memory.
        strict_device: endpoints of one node with different devices use the network, as if they were on two nodes.
    """

    name: str
    run_id: str
    folder: str
    node: str = "localhost"
    host: str = "127.0.0.1"
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    flows: int = 2
    inline_bytes: int = 64 * 2**10
    memory_bytes: int = 0
    window_bytes: int = 512 * 2**20
    device: str = ""
    strict_device: bool = False

    def memory_limit(self) -> int:
        """Return the bytes of shared memory that messages on their way may hold."""
        return self.memory_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where an endpoint is reached. ``uid`` is new with every opening, so a process that came back is another one."""

    uid: str
    name: str
    node: str
    pid: int
    path: str
    host: str
    port: int
    device: str = ""

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def label(self) -> str:
        """Name and process for messages."""
        return f"{self.name} (pid {self.pid}, node {self.node})"


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """Return the address that an endpoint gave as text. Raises TransportError when it is none."""
    try:
        return Address(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise TransportError(f"{text!r} is no address of an endpoint.") from error


def socket_path(folder: str, uid: str) -> str:
    """Return the path of an endpoint's Unix socket, which may have about 100 characters."""
    return str(Path(folder) / f"e-{uid}")
