"""Saving: every rank enters, rank 0 writes gathered files, each rank its own shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from plugrl.checkpoints.layout import SHARD_INDEX
from plugrl.checkpoints.parts import Part, deliver, read_part
from plugrl.checkpoints.shards import write_index
from plugrl.checkpoints.store import SAVE_TIMEOUT_S
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.checkpoint.collecting import Collector, Guard, Paths
from plugrl_engine_fsdp.checkpoint.contents import FAULTS, setting
from plugrl_engine_fsdp.checkpoint.output import Background, Output, Staging
from plugrl_engine_fsdp.distributed import raise_together, rank, world_size


class Saver:
    """Saves one engine.

    ``seconds``: what the parts of the latest save took on this rank, as far as training waited: ``gather``, ``copy`` to
    host memory or ``put`` into files (of which ``hash`` and ``write`` run side by side), ``sync``, ``index``.
    ``collector``: what puts the engine's state into the output, for engines that have it in another form.
    """

    def __init__(self, timeout_s: float = SAVE_TIMEOUT_S, collector: Callable[[Any, Output], Any] = Collector) -> None:
        self.timeout_s = timeout_s
        self._collector = collector
        self.seconds: dict[str, float] = {}
        self._staging = Staging()
        self._background: Background | None = None

    def wait(self) -> None:
        """Wait until nothing is written in the background. Raises CheckpointError after ``timeout_s``."""
        if self._background is not None:
            self._background.wait(self.timeout_s)
            self._background = None

    def save(
        self, engine: Any, folder: Path, step: int, progress: Mapping[str, Any] | None = None
    ) -> None:
        """Write ``folder``; with ``checkpoint.async_save`` tensors are copied here and written in the background.

        ``progress``: what the runner adds to ``training_step.json``. When one rank fails, all raise CheckpointError.
        Collective.
        """
        doing = f"saving {folder}"
        later = bool(setting(engine.checkpoint_config, "async_save", False))
        error: Exception | None = None
        try:
            self.wait()
            self._staging.rewind()
        except FAULTS as fault:
            error = fault
        raise_together(error, doing)
        output = Output(folder, self._staging if later else None)
        collector = self._collector(engine, output)
        collector.collect(step, progress or {})
        self.seconds, guard = collector.seconds, collector.guard
        background: Background | None = None
        complete = partial(
            _complete, rank=rank(), world_size=world_size(), indexes=collector.indexes, timeout_s=self.timeout_s
        )
        if later and guard.error is None and not output.is_empty:
            with guard:
                get_platform().synchronize()
                background = Background(output, f"rank{rank()}", complete)
        try:
            raise_together(guard.error, doing)
        except CheckpointError:
            output.discard()
            raise
        if background is not None:
            self._background = background
            background.start()
        elif not later:
            self._finish(output, complete, doing)

    def _finish(self, output: Output, complete: Callable[[Output], Part], doing: str) -> None:
        """The second half of a save that training waits for: the index needs what all ranks wrote."""
        guard = Guard()
        if rank() != 0:
            with guard:
                _hand_over(output, complete(output))
        raise_together(guard.error, doing)
        self.seconds |= output.seconds
        if rank() == 0:
            began = time.perf_counter()
            with guard:
                _hand_over(output, complete(output))
            self.seconds["index"] = time.perf_counter() - began
        raise_together(guard.error, doing)


def _complete(
    output: Output, *, rank: int, world_size: int, indexes: Mapping[str, Paths], timeout_s: float
) -> Part:
    """What is left when this rank's files are written: on rank 0, the index of each folder of shards."""
    if rank == 0 and indexes:
        deadline = time.monotonic() + timeout_s
        others = [read_part(output.folder, f"rank{other}", deadline=deadline).notes for other in range(1, world_size)]
        for folder, paths in indexes.items():
            notes = [output.notes[folder], *(other[folder] for other in others)]
            output.files[f"{folder}/{SHARD_INDEX}"] = write_index(output.folder / folder, notes, paths)
    return Part(files=output.files, ties=output.ties, notes=output.notes)


def _hand_over(output: Output, part: Part) -> None:
    if part.files:
        deliver(output.folder, f"rank{rank()}", part)
