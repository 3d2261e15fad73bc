"""Saving: every rank enters, rank 0 writes gathered files, each rank its own shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.checkpoints.layout import (
    EMA_FILE,
    MODEL_SHARDS,
    OPTIMIZER_FILE,
    OPTIMIZER_GROUPS,
    OPTIMIZER_SHARDS,
    PRETRAINED,
    PRETRAINED_EMA,
    RANDOM_FILE,
    SCALER_FILE,
    SCHEDULER_FILE,
    SHARD_INDEX,
    STEP_FILE,
    TIED,
    TRAINING_STATE,
    weights_file_name,
    writes_gathered,
    writes_shards,
)
from plugrl.checkpoints.parts import Part, deliver, read_part
from plugrl.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec
from plugrl.checkpoints.shards import ShardWriter, write_index
from plugrl.checkpoints.source import regions_of
from plugrl.checkpoints.store import SAVE_TIMEOUT_S
from plugrl.checkpoints.tensors import save_tensors, write_json
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.checkpoint.contents import (
    EMA_UPDATES,
    FAULTS,
    format_of,
    gather,
    group_records,
    is_spread,
    is_writer,
    parts_of,
    setting,
    tied_names,
    weights,
)
from plugrl_engine_fsdp.checkpoint.output import Background, Output, Staging
from plugrl_engine_fsdp.checkpoint.step_record import step_record
from plugrl_engine_fsdp.distributed import gather_objects, raise_together, rank, world_size
from plugrl_engine_fsdp.random_state import random_state

if TYPE_CHECKING:
    from plugrl_engine_fsdp.ema import Ema
    from plugrl_engine_fsdp.engine import DataParallelEngine

Paths = dict[str, tuple[str, ...]]
"""For each stored name of a folder of shards, the nested keys it stands for."""


class Saver:
    """Saves one engine.

    ``seconds``: what the parts of the latest save took on this rank, as far as training waited: ``gather``, ``copy`` to
    host memory or ``put`` into files (of which ``hash`` and ``write`` run side by side), ``sync``, ``index``.
    """

    def __init__(self, timeout_s: float = SAVE_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.seconds: dict[str, float] = {}
        self._staging = Staging()
        self._background: Background | None = None

    def wait(self) -> None:
        """Wait until nothing is written in the background. Raises CheckpointError after ``timeout_s``."""
        if self._background is not None:
            self._background.wait(self.timeout_s)
            self._background = None

    def save(
        self, engine: DataParallelEngine, folder: Path, step: int, progress: Mapping[str, Any] | None = None
    ) -> None:
        """Write ``folder``; with ``checkpoint.async_save`` tensors are copied here and written in the background.

        ``progress``: what the runner adds to ``training_step.json``. When one rank fails, all raise CheckpointError.
        Collective.
        """
        self.seconds = {}
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
        indexes: dict[str, Paths] = {}
        guard = Guard()
        self._contents(engine, output, indexes, guard, step, progress or {})
        background: Background | None = None
        complete = partial(
            _complete, rank=rank(), world_size=world_size(), indexes=indexes, timeout_s=self.timeout_s
        )
        if later and guard.error is None and not output.is_empty:
            with guard, self._timed("copy"):
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
            with guard, self._timed("index"):
                _hand_over(output, complete(output))
        raise_together(guard.error, doing)

    # ----------------------------------------------------------------- what is written
    def _contents(
        self,
        engine: DataParallelEngine,
        output: Output,
        indexes: dict[str, Paths],
        guard: Guard,
        step: int,
        progress: Mapping[str, Any],
    ) -> None:
        """Put everything into ``output``, in the same order on all ranks. Goes on after a fault: others wait."""
        parts = parts_of(engine.checkpoint_config, "save_contents")
        kind, sharded = format_of(engine.checkpoint_config), engine.topology.is_sharded
        training = output.folder / TRAINING_STATE
        if "model" in parts:
            self._model(engine, output, indexes, guard, kind, sharded)
        if engine.ema is not None and "model" in parts:
            self._model(engine, output, indexes, guard, kind, sharded, averaged=engine.ema)
        if engine.ema is not None and "extra" in parts:
            averages = {**engine.ema.shadow, EMA_UPDATES: torch.tensor(engine.ema.updates)}
            self._gathered(engine, output, training / EMA_FILE, averages, {}, guard)
        if "optimizer" in parts and engine.optimizer is not None:
            state = engine.layout.optimizer_state(engine.module, engine.optimizer)
            if rank() == 0:
                with guard:
                    write_json(training / OPTIMIZER_GROUPS, group_records(engine))
            slots = {(name, slot): value for name, values in state.items() for slot, value in values.items()}
            if sharded:
                tensors = {f"optimizer.state.{name}.{slot}": value for (name, slot), value in slots.items()}
                paths: Paths = {f"optimizer.state.{n}.{s}": ("optimizer", "state", n, s) for n, s in slots}
                self._shards(output, training / OPTIMIZER_SHARDS, tensors, paths, indexes, guard)
            else:
                tensors = {f"state/{name}/{slot}": value for (name, slot), value in slots.items()}
                self._gathered(engine, output, training / OPTIMIZER_FILE, tensors, {}, guard)
        if "extra" in parts:
            states = gather_objects(random_state())
            if rank() == 0:
                with guard:
                    _write_extra(engine, training, states, step, progress)

    def _model(
        self,
        engine: DataParallelEngine,
        output: Output,
        indexes: dict[str, Paths],
        guard: Guard,
        kind: Any,
        sharded: bool,
        averaged: Ema | None = None,
    ) -> None:
        folder = output.folder / (PRETRAINED if averaged is None else PRETRAINED_EMA)
        tensors = weights(engine) if averaged is None else averaged.weights(weights(engine))
        if rank() == 0:
            with guard:
                output.ties = tied_names(engine.module)
                folder.mkdir(parents=True, exist_ok=True)
                engine.module.save_config(folder)  # type: ignore[operator]
        if writes_shards(kind, sharded=sharded):
            named = {f"model.{name}": tensor for name, tensor in tensors.items()}
            paths: Paths = {f"model.{name}": ("model", name) for name in tensors}
            self._shards(output, folder / MODEL_SHARDS, named, paths, indexes, guard)
        if writes_gathered(kind, sharded=sharded):
            metadata = {"format": "pt", **{f"{TIED}{name}": stored for name, stored in output.ties.items()}}
            self._gathered(engine, output, folder / weights_file_name(folder), tensors, metadata, guard)

    def _gathered(
        self,
        engine: DataParallelEngine,
        output: Output,
        path: Path,
        tensors: Mapping[str, torch.Tensor],
        metadata: Mapping[str, str],
        guard: Guard,
    ) -> None:
        """One file of whole tensors, gathered one by one: memory holds one of them besides what there was."""
        specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
        writer: SafetensorsWriter | None = None
        if rank() == 0 and guard.error is None:
            with guard:
                writer = SafetensorsWriter(path, specs, metadata)
                output.opened(writer)
        for name in SafetensorsWriter.order(specs):
            with self._timed("gather"):
                whole = gather(tensors[name], engine.device)
            if writer is not None and guard.error is None:
                with guard, self._timed("copy" if output.is_staged else "put"):
                    output.put(partial(writer.add, name), whole, own=is_spread(tensors[name]))
        if writer is not None and guard.error is None:
            with guard:
                output.closed(writer)

    def _shards(
        self,
        output: Output,
        folder: Path,
        tensors: Mapping[str, torch.Tensor],
        paths: Paths,
        indexes: dict[str, Paths],
        guard: Guard,
    ) -> None:
        """This rank's blocks in its own file."""
        indexes[str(folder.relative_to(output.folder))] = paths
        if guard.error is not None:
            return
        with guard, self._timed("copy" if output.is_staged else "put"):
            writer = ShardWriter(folder, rank())
            output.opened(writer)
            for index, (name, tensor) in enumerate(tensors.items()):
                if is_writer(tensor, index, rank(), world_size()):
                    spec = TensorSpec.of(tensor)
                    for (offsets, _), block in regions_of(tensor):
                        output.put(partial(_add_block, writer, name, spec, offsets), block)
        if guard.error is None:
            with guard:
                output.closed(writer)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


class Guard:
    """A context that keeps the first fault instead of raising it: a rank that left a save would hang the others."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, FAULTS):
            self.error = self.error or error
            return True
        return False


def _add_block(
    writer: ShardWriter, name: str, spec: TensorSpec, offsets: tuple[int, ...], block: torch.Tensor
) -> None:
    writer.add(name, block, spec, offsets)


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


def _write_extra(
    engine: DataParallelEngine,
    training: Path,
    random_states: list[dict[str, torch.Tensor]],
    step: int,
    progress: Mapping[str, Any],
) -> None:
    tensors = {f"rank_{index}/{key}": value for index, one in enumerate(random_states) for key, value in one.items()}
    save_tensors(training / RANDOM_FILE, tensors)
    if engine.schedule is not None:
        write_json(training / SCHEDULER_FILE, engine.schedule.state_dict())
    if engine.scaler is not None:
        write_json(training / SCALER_FILE, engine.scaler.state_dict())
    write_json(training / STEP_FILE, step_record(engine, step, progress))
