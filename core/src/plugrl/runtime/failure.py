"""What a worker sends back instead of a result when its method raised, and how the driver raises it again."""

from __future__ import annotations

import pickle
import time
import traceback
from dataclasses import dataclass, field

from plugrl.errors import PeerLostError, PlugRLError, UserError, WeightSyncError, WorkerError

_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """The process behind one rank. ``started`` is the kernel's start time of the process, to tell a re-used pid.

    ``device`` is the platform's unique name of the device, empty until the worker has taken it. ``node_name`` is what
    messages call the node, empty where its address says enough. ``pulse`` is the descriptor of the process's
    :class:`plugrl.runtime.pulse.Pulse`, -1 where it has none.
    """

    group: str
    rank: int
    pid: int
    node_id: str
    node_ip: str
    started: str = ""
    stderr_path: str = ""
    device: str = ""
    node_name: str = ""
    pulse: int = -1

    def __str__(self) -> str:
        device = f", device {self.device}" if self.device else ""
        where = f"node {self.node_name or self.node_ip}, pid {self.pid}{device}"
        return f"worker group {self.group!r} rank {self.rank} ({where})"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception on its way to the driver: as text always, as an object (pickled) when it is one of PlugRL's own."""

    where: RankInfo
    method: str
    cause_type: str
    message: str
    traceback: str
    pickled: bytes | None = None
    at: float = field(default_factory=time.time)
    is_consequence: bool = False
    """Whether it says no more than that another process is gone or has failed, which is then the first cause."""

    @classmethod
    def capture(cls, error: BaseException, where: RankInfo, method: str) -> Failure:
        """Describe ``error``, raised by ``method`` in the process ``where``."""
        return cls(
            where=where,
            method=method,
            cause_type=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
            pickled=_pickled(error) if isinstance(error, PlugRLError) else None,
            is_consequence=_is_consequence(error),
        )

    def error(self) -> Exception:
        """Return what the driver raises: the user's own error with its type, anything else as WorkerError.

        A UserError keeps its message, which the command line prints alone; where it was raised stands in its notes. The
        cause of a WorkerError is the remote exception when that is one of PlugRL's own.
        """
        original = _unpickled(self.pickled)
        if isinstance(original, UserError):
            original.add_note(f"Raised by {self.where} in {self.method}().")
            original.add_note(self.traceback)
            return original
        error = WorkerError(
            f"{self.where} failed in {self.method}(): {self.cause_type}: {self.message}\n\n"
            f"Traceback of the worker:\n{self.traceback.rstrip()}",
            group=self.where.group,
            rank=self.where.rank,
            node=self.where.node_ip,
            pid=self.where.pid,
            remote_traceback=self.traceback,
        )
        error.__cause__ = original
        return error


def _is_consequence(error: BaseException) -> bool:
    """Whether ``error`` says no more than that another process failed first; gloo raises a plain RuntimeError."""
    if isinstance(error, PeerLostError | ConnectionError | EOFError):
        return True
    if isinstance(error, WeightSyncError):
        return error.is_consequence
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _LOST_CONNECTION)


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an error whose round trip works; classes with unusual constructors fail in many ways."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # Third-party exceptions: the text is sent in any case.
        return None
    return data


def _unpickled(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:  # Its class lives in a package that only the worker has; the text says it all.
        return None
    return error if isinstance(error, BaseException) else None
