"""What is said between an environment and its simulator processes, and the socket that carries it.

The two ends are one program that starts itself, so messages are pickled; nothing else can reach the socket.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from plugrl.envs.episodes import EpisodeRecord
from plugrl.envs.process.memory import Layout

_LENGTH = struct.Struct("!Q")
_GLANCE_S = 0.5


@dataclass(frozen=True)
class Hello:
    """The first message to a simulator: where modules are found, and what it is, as ``(build, params)`` pickled."""

    search_path: tuple[str, ...]
    recipe: bytes


@dataclass(frozen=True)
class Ready:
    """The answer: what was built."""

    num_envs: int
    action_dim: int
    max_episode_steps: int | None


@dataclass(frozen=True)
class Reset:
    """Begin episodes with ``seeds`` in the scenes ``indices``; those of ``waiting`` take no action until a reset."""

    seeds: tuple[int, ...]
    indices: tuple[int, ...]
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True)
class Observed:
    """The answer: what all scenes look like, and their seeds."""

    obs: dict[str, Any]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """Carry out the actions in shared memory; ``layout`` is given where it differs from the last one."""

    layout: Layout | None = None


@dataclass(frozen=True)
class Stepped:
    """The answer, beside the arrays in shared memory: what is no array."""

    has_final: bool
    texts: dict[str, list[Any]]
    final_texts: dict[str, list[Any]]
    episodes: tuple[EpisodeRecord, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """Call a method that changes nothing and returns an array: ``expert_scenes`` or ``render_scene``."""

    method: str
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer: the array."""

    value: NDArray


@dataclass(frozen=True)
class Refused:
    """The answer to what cannot be had, however often it is asked: a class of plugrl.errors and its text."""

    kind: str
    text: str


@dataclass(frozen=True)
class Raised:
    """The answer when the simulator raised: the error on one line, and the traceback."""

    text: str
    traceback: str


@dataclass(frozen=True)
class Close:
    """The last message; the answer is the end of the process."""


@dataclass
class Wire:
    """One end of the socket. Messages are whole or not there at all, and no wait is longer than its deadline.

    is_alive: asked now and then while waiting, since a process that the other end started may hold the socket open.
    """

    socket: socket.socket
    is_alive: Callable[[], bool] = field(default=lambda: True)

    def send(self, message: Any, timeout_s: float | None) -> None:
        """Send a message. Raises OSError when the other end is gone or does not take it (TimeoutError)."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self.socket.settimeout(timeout_s)
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, timeout_s: float | None) -> Any:
        """Return the next message. Raises TimeoutError, and EOFError when the other end is gone."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        return pickle.loads(self._exactly(length, deadline))

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._some(count - len(parts), deadline)
            if not part:
                raise EOFError("the other end is closed")
            parts += part
        return bytes(parts)

    def _some(self, count: int, deadline: float | None) -> bytes:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("no message in time")
            self.socket.settimeout(None if left is None else min(left, _GLANCE_S))
            try:
                return self.socket.recv(min(count, 1 << 20))
            except TimeoutError:
                if not self.is_alive():
                    return b""
