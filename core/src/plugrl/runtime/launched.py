"""Processes that a launcher started: torchrun, or anything that sets its variables, one node or several.

What they say to each other travels through the launcher's store as JSON; tensors take the process group alone.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plugrl.errors import ConfigError, PlugRLError, WorkerError, WorkerTimeout, one_line

if TYPE_CHECKING:
    from torch.distributed import Store

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FAILED = "plugrl/failed"
_LOOK_EVERY_S = 0.5
_GRACE_S = 3.0
"""How long a rank may take to leave by itself once another one has failed."""
_LEAVE_S = 4 * _GRACE_S
"""How long the way out may take, which asks the store as well."""
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Where a launcher put this process; the names are torchrun's variables in lower case."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int

    @property
    def is_first(self) -> bool:
        """Whether this process runs the loop, prints and writes."""
        return self.rank == 0


def launched(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return where a launcher put this process, None when none started it.

    Raises ConfigError for variables that are no numbers or contradict each other.
    """
    source = os.environ if environ is None else environ
    if not all(source.get(name) for name in _NEEDED):
        return None
    numbers = {}
    for name, default in (
        ("RANK", ""), ("WORLD_SIZE", ""), ("MASTER_PORT", ""), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"),
    ):  # fmt: skip
        text = source.get(name) or default
        if not text.isdecimal():
            raise ConfigError(f"{name}={text!r} is no number; torchrun sets it, or leave it unset to use Ray.")
        numbers[name.lower()] = int(text)
    if not (numbers["rank"] < numbers["world_size"] and numbers["local_rank"] < numbers["local_world_size"]):
        raise ConfigError(f"RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE do not fit together: {numbers}.")
    return Launch(master_addr=source["MASTER_ADDR"], **numbers)


class Link:
    """The store that all ranks share, watched for the failure of another rank; use it as a context manager.

    A block that raises tells the other ranks, which then leave within a deadline. A rank that raises because another
    one is gone learns of it here and raises that rank's message instead.
    """

    def __init__(self, launch: Launch, timeout_s: float) -> None:
        self.launch = launch
        self.timeout_s = timeout_s
        self._commands = 0
        self._forgotten = 0
        self._waits = False
        self._done = threading.Event()
        self._closed = threading.Event()
        self._answers = 0
        self._error_here = ""

    def __enter__(self) -> Link:
        from torch.distributed import DistError, PrefixStore, rendezvous

        try:
            found = rendezvous(
                "env://", self.launch.rank, self.launch.world_size, timeout=timedelta(seconds=self.timeout_s)
            )
            self.base, _, _ = next(found)
            # torchrun may start the ranks again after a failure; words of the earlier attempt must not count.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self.store: Store = PrefixStore(f"plugrl-{attempt}", self.base)
            # A connection of its own: one that waits for a word answers nothing else meanwhile.
            self._watched: Store = PrefixStore(f"plugrl-{attempt}", self.base.clone())
            self.store.set(f"host/{self.launch.rank}", socket.gethostname())
        except (DistError, RuntimeError) as error:
            where = f"{self.launch.master_addr}:{self.launch.master_port}"
            raise PlugRLError(f"The ranks do not meet at {where} (MASTER_ADDR, MASTER_PORT): {error}") from error
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()
        threading.Thread(target=self._guard, name="ranks-guard", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._error_here = "" if error is None else f"{one_line(error)}; "
        self._done.set()
        self._watcher.join(2 * _LOOK_EVERY_S)
        other = None
        if error is None:
            self._part()
        else:
            other = self._report(error)
            if self.launch.is_first:
                self._linger()
        self._closed.set()
        del self.store, self._watched, self.base  # closes the store, if it lives here
        if other is not None:
            raise other from error

    def _part(self) -> None:
        """Rank 0 goes last: the store may live in its process, and the others may still have to read from it."""
        try:
            if not self.launch.is_first:
                self.publish(f"left/{self.launch.rank}", True)
                return
            left = [f"word/left/{rank}" for rank in range(1, self.launch.world_size)]
            deadline = time.monotonic() + _GRACE_S
            while not self.store.check(left) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except RuntimeError:
            pass  # the launcher has gone already, and the work is done

    # ----------------------------------------------------------------- failures
    def _report(self, error: BaseException) -> Exception | None:
        """Tell the others of ``error``; return the error of the rank that failed before this one."""
        try:
            mine = json.dumps({"rank": self.launch.rank, "host": socket.gethostname(), "text": one_line(error)})
            first = json.loads(self.store.compare_set(_FAILED, "", mine))
            self.store.set(f"seen/{self.launch.rank}", "")
        except RuntimeError:  # the store is gone, and with it whoever could be told
            return None
        return None if first["rank"] == self.launch.rank else self._error(first)

    def _linger(self) -> None:
        """Rank 0: the store may live in this process; let the others read in it why they have to go."""
        seen = [f"seen/{rank}" for rank in range(1, self.launch.world_size)]
        deadline = time.monotonic() + 4 * _LOOK_EVERY_S
        try:
            while not self._watched.check(seen) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except RuntimeError:
            pass  # it did not live here, and is gone

    def _error(self, failure: Mapping[str, Any]) -> Exception:
        rank, host = int(failure["rank"]), str(failure["host"])
        return WorkerError(f"Rank {rank} on {host} failed: {failure['text']}", group="ranks", rank=rank, node=host)

    def _watch(self) -> None:
        """Look for the failure of another rank; end this process when it does not leave by itself in time."""
        missed = 0
        while not self._done.wait(_LOOK_EVERY_S):
            try:
                failed = self._watched.check([_FAILED])
                self._answers += 1
                missed = 0
            except RuntimeError:
                missed += 1
                failed = False
            if failed or missed * _LOOK_EVERY_S > _GRACE_S:
                break
        else:
            return
        if failed:
            self._watched.set(f"seen/{self.launch.rank}", "")
        # What waits for the failed rank ends by itself as a rule, since its connections are gone.
        if not self._waits and self._done.wait(_GRACE_S):
            return
        if self.launch.is_first:
            text = "the launcher is gone" if missed else str(self._error(json.loads(self._watched.get(_FAILED))))
            os.write(2, f"error: {text}\n".encode())
        os._exit(1)

    def _guard(self) -> None:
        """End this process when the store is silent: a host that is frozen or cut off closes no connection.

        Calls to the store have no deadline of their own then, those of the way out included.
        """
        silent, answers = 0, -1
        while not self._closed.wait(_LOOK_EVERY_S):
            silent = silent + 1 if answers == self._answers else 0
            answers = self._answers
            limit = _LEAVE_S if self._done.is_set() else self.timeout_s
            if silent * _LOOK_EVERY_S > limit:
                text = f"{self._error_here}rank {self.launch.rank} has no answer from the store of the ranks"
                os.write(2, f"error: {text} (MASTER_ADDR {self.launch.master_addr})\n".encode())
                os._exit(1)

    # ----------------------------------------------------------------- words
    def publish(self, name: str, value: Any) -> None:
        """Let every rank read ``value``, which JSON can hold, as ``name``."""
        self.store.set(f"word/{name}", json.dumps(value))

    def read(self, name: str, timeout_s: float | None = None) -> Any:
        """Return what a rank published, waiting for it.

        Raises WorkerTimeout, and WorkerError with the message of a rank that failed meanwhile.
        """
        key = f"word/{name}"
        self._wait_for([key], self.timeout_s if timeout_s is None else timeout_s)
        return json.loads(self.store.get(key))

    def hosts(self) -> list[str]:
        """Return the host of each rank. Raises as :meth:`read`, when one does not come."""
        keys = [f"host/{rank}" for rank in range(self.launch.world_size)]
        self._wait_for(keys, self.timeout_s)
        return [self.store.get(key).decode() for key in keys]

    def send(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Rank 0: tell the other ranks to call a method of their worker."""
        self.publish(f"call/{self._commands}", [method, dict(arguments)])
        self._commands += 1

    def receive(self, timeout_s: float) -> tuple[str, dict[str, Any]]:
        """Other ranks: return the next method to call and its arguments. Raises WorkerTimeout."""
        key = f"word/call/{self._commands}"
        self._waits = True
        try:
            # In one go, which is quickest; the watching thread ends this process when a rank fails meanwhile.
            self.store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise self._late([key], timeout_s) from error
        finally:
            self._waits = False
        method, arguments = json.loads(self.store.get(key))
        self._commands += 1
        return method, arguments

    def forget_calls(self) -> None:
        """Rank 0: drop the words that every rank has read, as after a call in which all took part together."""
        while self._forgotten < self._commands:
            self.store.delete_key(f"word/call/{self._forgotten}")
            self._forgotten += 1

    def _wait_for(self, keys: list[str], timeout_s: float) -> None:
        """Look for keys again and again, and for a failure too."""
        deadline = time.monotonic() + timeout_s
        try:
            while not self.store.check(keys):
                if self.store.check([_FAILED]):
                    raise self._error(json.loads(self.store.get(_FAILED)))
                if time.monotonic() > deadline:
                    raise self._late(keys, timeout_s)
                time.sleep(_POLL_S)
        except RuntimeError as error:
            raise PlugRLError(f"Rank {self.launch.rank} has lost rank 0 or the launcher: {one_line(error)}") from error

    def _late(self, keys: list[str], timeout_s: float) -> WorkerTimeout:
        names = ", ".join(key.removeprefix("word/") for key in keys)
        return WorkerTimeout(
            f"Rank {self.launch.rank} has waited up to {timeout_s:.0f} s for {names}, which another rank should have "
            "sent.",
            group="ranks",
            rank=self.launch.rank,
        )
