"""The driver's end of the preloaded process: what it imports, its start, its end."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase

PRELOAD = (
    "torch",
    "torch.distributed",
    "plugrl.config.schema",
    "plugrl.platforms.generic",
    "plugrl.plugins.loader",
)
"""What every worker imports, whatever it does; nothing of it imports Ray."""

logger = logging.getLogger(__name__)

_STOP_S = 5.0
_BACKLOG = 128


class PreloadedProcess:
    """Starts the process and returns at once: who asks for a fork waits for its imports.

    Args:
        folder: where its socket and its output lie, of which the path is short.
        env: variables of every worker, which the process is started with.
        modules: names of modules to import beside ``common``.
        sdk: the module that must not be loaded before a worker has its device; empty where there is none.
        common: what it imports in any case.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        modules: Iterable[str] = (),
        sdk: str = "",
        *,
        common: Sequence[str] = PRELOAD,
    ) -> None:
        self.address = folder / "preload"
        self.log = folder / "preload.log"
        reading, self._control = os.pipe()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener, self.log.open("wb") as log:
            # Whoever connects waits in line from now on, and is refused once the process is gone.
            listener.bind(str(self.address))
            listener.listen(_BACKLOG)
            arguments = [str(listener.fileno()), str(reading), sdk, *dict.fromkeys([*common, *modules])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plugrl.runtime.preload.server", *arguments],
                pass_fds=(listener.fileno(), reading),
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        os.close(reading)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def stop(self) -> None:
        """End the process, and log what it said, such as why it forked nothing; its forks are Ray's to end."""
        with suppress(OSError):
            os.close(self._control)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:  # in the middle of its imports
            self._process.kill()
            self._process.wait(_STOP_S)
        with suppress(OSError):
            for line in dict.fromkeys(self.log.read_text(errors="replace").splitlines()):
                logger.info("Preloading workers: %s", line)


def sdk_of(platform: PlatformBase) -> str:
    """Return the module that adds the platform's device to torch, empty where there is none."""
    return str(getattr(platform, "extension", None) or "")


def modules_of(targets: Sequence[str | None]) -> list[str]:
    """Return the modules of ``"module:attribute"`` targets that are installed, each once."""
    names = dict.fromkeys(target.partition(":")[0] for target in targets if target)
    return [name for name in names if importlib.util.find_spec(name.partition(".")[0]) is not None]
