"""How the ranks of a group find each other: one store per group, bound to one address."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

_BACKLOG = 128
_IFF_LOOPBACK = 0x8


def open_store(address: str, timeout_s: float) -> tuple[TCPStore, int]:
    """Serve a store on a free port of ``address`` alone and return it with the port.

    torch would listen on every interface; it is given a socket that is bound already, which also leaves no moment
    between finding a free port and using it.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(_BACKLOG)
        port = listener.getsockname()[1]
        store = TCPStore(
            address,
            port,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=os.dup(listener.fileno()),
        )
    return store, port


def join_store(address: str, port: int, timeout_s: float) -> TCPStore:
    """Connect to the store that rank 0 serves; raises torch's DistError after ``timeout_s`` seconds."""
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def loopback_interface() -> str | None:
    """Return the name of the loopback interface (``lo``, ``lo0``), None when it cannot be told."""
    for flags in sorted(Path("/sys/class/net").glob("*/flags")):
        if int(flags.read_text(), 16) & _IFF_LOOPBACK:
            return flags.parent.name
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return names[0] if names else None
