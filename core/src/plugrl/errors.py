"""The one hierarchy of errors.

Every error PlugRL raises on purpose derives from :class:`PlugRLError`. Those that a user can mend derive from
:class:`UserError`: their text is one readable message (what was given, what is known, what to do next), which the
command line prints without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_LONGEST = 1000
"""Characters of a foreign error's text that a message shows; its traceback has the rest."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate most like ``name``, or None when nothing is close."""
    matches = get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def one_of(names: Iterable[str]) -> str:
    """Format candidates for a message: sorted and comma-separated, ``(none)`` when empty."""
    return ", ".join(sorted(names)) or "(none)"


def one_line(error: BaseException, *, with_type: bool = True) -> str:
    """Return ``Type: text`` of an error on one line and of bounded length, even if it cannot say its own text."""
    try:
        text = " ".join(str(error).split())
    except Exception as second:  # An error of foreign code whose __str__ is broken.
        text = f"(its text cannot be read: {type(second).__name__})"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}".rstrip(": ") if with_type else text


class Terminated(BaseException):
    """SIGTERM arrived; what was opened is closed on the way out, as after Ctrl-C."""


STOPS = (KeyboardInterrupt, Terminated)
"""What a border to foreign code lets through, where it keeps every other error, SystemExit included: extensions in Rust
and asyncio raise errors that are no ``Exception``."""


class PlugRLError(Exception):
    """Base of every error raised by PlugRL."""


class UserError(PlugRLError, ValueError):
    """A mistake in what the user gave; the message says how to mend it."""


class ConfigError(UserError):
    """The configuration is wrong; the message starts with the path of the key."""


class DataError(UserError):
    """A data file is missing or malformed; the message names the file and, where there is one, the line."""


class CheckpointError(UserError):
    """A checkpoint is missing, incomplete or was altered."""


class RunExists(UserError, FileExistsError):
    """A folder that was to be new holds a run."""


class MissingDependency(UserError):
    """An optional package is not installed; the message gives the command that installs it."""


class PluginError(UserError):
    """A plugin failed and the user depends on it, or a plugin broke a rule of the host."""


class IncompatiblePlugin(PluginError):
    """A plugin was written for another plugin API or another range of core versions."""


class DuplicateRegistration(PluginError):
    """Two different objects claim one key; the message names both origins."""


class NotRegistered(UserError, LookupError):
    """A name is not in a registry; the message lists the candidates and the plugins that failed."""


class PlatformNotFound(NotRegistered):
    """No platform has the given name."""


class PlatformUnavailable(UserError):
    """A platform is registered but cannot be used on this machine."""


class EngineNotFound(NotRegistered):
    """No engine matches the model type, backend, device and vendor."""


class ModelNotFound(NotRegistered):
    """No model type has the given name."""


class UnsupportedCapability(UserError):
    """A policy was asked for something it does not offer; the message lists what it offers."""


class WorkerError(PlugRLError):
    """A method of a worker raised; the text holds group, rank, node and the remote traceback."""

    def __init__(
        self, message: str, *, group: str = "", rank: int = -1, node: str = "", pid: int = 0, remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.group = group
        self.rank = rank
        self.node = node
        self.pid = pid
        self.remote_traceback = remote_traceback


class WorkerDied(WorkerError):
    """The process of a worker is gone."""


class WorkerFrozen(WorkerError):
    """The process of a worker is there but does nothing: ``state`` says whether it is stopped or unresponsive."""

    def __init__(self, message: str, *, state: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.state = state


class RuntimeTimeout(PlugRLError, TimeoutError):
    """A wait of the runtime reached its deadline; the message says who waited for what."""


class WorkerTimeout(WorkerError, RuntimeTimeout):
    """A worker did not answer before its deadline."""


class CallCancelled(PlugRLError):
    """A call of a worker group was cancelled; the message names ranks that did not stop."""


class PeerLostError(PlugRLError):
    """A worker waited for another one that is gone or frozen; ``group``, ``rank`` and ``node`` say which."""

    def __init__(self, message: str, *, group: str = "", rank: int = -1, node: str = "") -> None:
        super().__init__(message)
        self.group = group
        self.rank = rank
        self.node = node


class TransportError(PlugRLError):
    """What one process sends cannot be carried or does not fit what the other one expects."""


class ClusterLost(PlugRLError):
    """A server of Ray on the driver's machine is gone, and with it every worker; the run can only end."""


class ChannelClosed(PlugRLError):
    """A channel takes no more items, or a closed one has none left: the end of the stream."""


class FingerprintMismatch(PluginError):
    """A worker has other plugins than the driver."""


class EnvContractError(PlugRLError):
    """An environment broke a rule of its contract; the message names the rule."""


class SimulatorFailed(UserError):
    """A simulator process failed again and again; the message says how, ``causes`` what happened each time.

    The cause is in the simulator or its settings, so the message stands alone, without the path through PlugRL.
    """

    def __init__(self, message: str, *, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.causes = causes


class WeightSyncError(PlugRLError):
    """Weights did not arrive whole; the receiver must not generate with them.

    ``is_consequence``: it says no more than that the other end is gone or failed first.
    """

    is_consequence: bool = False


class ScaleError(PlugRLError):
    """A group could not be scaled; ``step`` says where it stopped.

    ``rolled_back``: the group is what it was and works on. Otherwise the new workers are the group already.
    """

    def __init__(self, step: str, cause: BaseException, *, rolled_back: bool) -> None:
        state = "nothing has changed" if rolled_back else "the new workers are in use"
        super().__init__(f"Scaling failed in step {step}, {state}: {one_line(cause)}")
        self.step = step
        self.cause = cause
        self.rolled_back = rolled_back
