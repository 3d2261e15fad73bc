"""Who is where in a run: names and their JSON values, looked up by every process with a deadline.

It is one torch TCPStore for each session, served by a thread below Python in the driver's process, which answers
whatever the driver does. Names of one run never meet those of another, since each run has a store of its own.

    group/NAME                           {"generation": ..., "size": ...} of the group that runs under the name
    endpoint/NAME/GENERATION/RANK        address of the rank's endpoint
    devices                              address of the endpoint that gives workers their turns on devices
    losses                               [group, generation, rank, reason] of each worker that is gone or frozen
"""

from __future__ import annotations

import json
import time
from typing import Any

from torch.distributed import DistError, TCPStore

from plugrl.errors import RuntimeTimeout
from plugrl.runtime.cancellation import raise_if_cancelled
from plugrl.runtime.deadline import DEFAULT, Deadline, Timeout
from plugrl.runtime.rendezvous import join_store, open_store

LOOK_UP_TIMEOUT_S = 60.0
_TICK_S = 0.02
_CONNECT_S = 60.0


class Directory:
    """The names of a run. Make one with :meth:`serve` or :meth:`join`; a process may hold several."""

    def __init__(self, store: TCPStore, host: str, port: int) -> None:
        self._store = store
        self.host = host
        self.port = port

    @classmethod
    def serve(cls, host: str) -> Directory:
        """Serve a directory on a free port of this address alone; it ends with this object."""
        store, port = open_store(host, _CONNECT_S)
        return cls(store, host, port)

    @classmethod
    def join(cls, host: str, port: int) -> Directory:
        """Connect to the directory that the driver serves. Raises RuntimeTimeout when nothing answers there."""
        try:
            return cls(join_store(host, port, _CONNECT_S), host, port)
        except DistError as error:
            raise RuntimeTimeout(f"The directory of the run at {host}:{port} does not answer: {error}") from error

    def publish(self, name: str, value: Any) -> None:
        """Set what a name stands for; ``value`` is what JSON can write."""
        self._store.set(name, json.dumps(value))

    def claim(self, name: str, value: Any) -> bool:
        """Set what a name stands for unless it stands for something else already; say whether it stands for ours."""
        mine = json.dumps(value)
        return bool(self._store.compare_set(name, "", mine).decode() == mine)

    def withdraw(self, name: str) -> None:
        """Let a name stand for nothing; nothing happens when it does not."""
        self._store.delete_key(name)

    def find(self, name: str) -> Any:
        """Return what a name stands for now, None when it is unknown."""
        if not self._store.check([name]):
            return None
        try:
            return json.loads(self._store.get(name))
        except DistError:
            return None  # withdrawn in between

    def lookup(self, name: str, timeout: Timeout = DEFAULT, *, what: str = "") -> Any:
        """Return what a name stands for, as soon as somebody has published it.

        Args:
            timeout: seconds, 60 when omitted, None for ever, 0 not at all.
            what: what the message calls the name.

        Raises:
            RuntimeTimeout: nobody did in time.
        """
        deadline = Deadline(timeout, LOOK_UP_TIMEOUT_S)
        while True:
            value = self.find(name)
            if value is not None:
                return value
            raise_if_cancelled()
            if deadline.is_over:
                raise RuntimeTimeout(f"Nobody has published {what or name} within {round(deadline.limit or 0, 2):g} s.")
            # The store's own wait would hold the connection, and print a warning whenever a tick is over.
            time.sleep(deadline.left(_TICK_S))
