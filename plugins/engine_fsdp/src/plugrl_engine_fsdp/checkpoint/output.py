"""Where a rank's tensors go: into files at once, or into host memory and from there into files in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from plugrl.checkpoints.manifest import FileRecord
from plugrl.checkpoints.parts import Part, announce, deliver
from plugrl.checkpoints.safetensors_file import SafetensorsWriter
from plugrl.checkpoints.shards import ShardWriter
from plugrl.errors import CheckpointError, one_line

Writer = SafetensorsWriter | ShardWriter


class Staging:
    """Host memory that snapshots are taken into; kept, since fresh memory costs more than the copy."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0

    def rewind(self) -> None:
        """Begin a snapshot; what the one before holds may be overwritten from now on."""
        self._used = 0

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host, perhaps still under way: synchronise the device before it is read."""
        index, self._used = self._used, self._used + 1
        if index == len(self._buffers) or not _fits(self._buffers[index], tensor):
            pin = tensor.device.type != "cpu"
            fresh = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin)
            self._buffers[index : index + 1] = [fresh]
        return self._buffers[index].copy_(tensor, non_blocking=True)


def _fits(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    return buffer.shape == tensor.shape and buffer.dtype == tensor.dtype


class Output:
    """The files that one rank writes for one checkpoint. With ``staging`` nothing is written before :meth:`write`."""

    def __init__(self, folder: Path, staging: Staging | None = None) -> None:
        self.folder = folder
        self.files: dict[str, FileRecord] = {}
        self.notes: dict[str, Any] = {}
        self.ties: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self._staging = staging
        self._calls: list[Callable[[], Any]] = []
        self._open: list[Writer] = []

    @property
    def is_staged(self) -> bool:
        """Whether tensors are copied now and written later."""
        return self._staging is not None

    def put(self, write: Callable[[torch.Tensor], Any], tensor: torch.Tensor, *, own: bool = False) -> None:
        """Hand ``tensor`` to ``write`` now or later. ``own``: nobody else changes it, so that it needs no copy."""
        if self._staging is None:
            write(tensor)
        elif own and tensor.device.type == "cpu":
            self._calls.append(partial(write, tensor))
        else:
            self._calls.append(partial(write, self._staging.copy(tensor)))

    def opened(self, writer: Writer) -> None:
        """Remember a writer, so that it is closed or its file removed."""
        self._open.append(writer)

    def closed(self, writer: Writer) -> None:
        """Close a writer, now or after what was put before, and list its file."""
        if self._staging is None:
            self._close(writer)
        else:
            self._calls.append(partial(self._close, writer))

    def _close(self, writer: Writer) -> None:
        self.files[str(writer.file.path.relative_to(self.folder))] = writer.close()
        self._open.remove(writer)
        for name, taken in writer.file.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + taken
        if isinstance(writer, ShardWriter):
            self.notes[str(writer.file.path.parent.relative_to(self.folder))] = writer.notes()

    def write(self) -> None:
        """Do what was left for later."""
        calls, self._calls = self._calls, []
        calls.reverse()
        while calls:
            calls.pop()()

    def discard(self) -> None:
        """Give up: close and remove what is open, forget what was left for later."""
        self._calls.clear()
        while self._open:
            self._open.pop().discard()

    @property
    def is_empty(self) -> bool:
        """Whether this rank has nothing to write."""
        return not self._open and not self._calls and not self.files


class Background:
    """One save of this rank that goes on while training does."""

    def __init__(self, output: Output, name: str, complete: Callable[[Output], Part]) -> None:
        self._output = output
        self._name = name
        self._complete = complete
        announce(output.folder, name)
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-{name}", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end; a failure is told to who completes the checkpoint. Raises CheckpointError if it is late."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise CheckpointError(f"the save before this one was not done after {timeout_s:.0f} s")

    def _run(self) -> None:
        try:
            self._output.write()
            part = self._complete(self._output)
        except Exception as error:  # the border of the thread: the failure becomes the part
            self._output.discard()
            part = Part(error=f"{self._name}: {one_line(error)}")
        try:
            deliver(self._output.folder, self._name, part)
        except OSError:
            pass  # the folder is gone: whoever waited for this part gave up and removed it
