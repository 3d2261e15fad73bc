"""What goes into a checkpoint, tensor by tensor: collective, in the same order on all ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
    STEP_FILE,
    TIED,
    TRAINING_STATE,
    weights_file_name,
    writes_gathered,
    writes_shards,
)
from plugrl.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec
from plugrl.checkpoints.shards import ShardWriter
from plugrl.checkpoints.source import regions_of
from plugrl.checkpoints.tensors import save_tensors, write_json
from plugrl_engine_fsdp.checkpoint.contents import (
    EMA_UPDATES,
    FAULTS,
    format_of,
    gather,
    group_records,
    is_spread,
    is_writer,
    parts_of,
    tied_names,
    weights,
)
from plugrl_engine_fsdp.checkpoint.output import Output
from plugrl_engine_fsdp.checkpoint.step_record import step_record
from plugrl_engine_fsdp.distributed import gather_objects, rank, world_size
from plugrl_engine_fsdp.random_state import random_state

if TYPE_CHECKING:
    from plugrl_engine_fsdp.ema import Ema
    from plugrl_engine_fsdp.engine import DataParallelEngine

Paths = dict[str, tuple[str, ...]]
"""For each stored name of a folder of shards, the nested keys it stands for."""
Tensors = Mapping[str, torch.Tensor]


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


class Collector:
    """Puts the state of an engine into an output.

    ``guard.error`` is the first fault of this rank, after which it writes nothing but stays in step with the others.
    ``indexes``: for each folder of shards, what its names stand for. ``seconds``: what the parts took.
    """

    def __init__(self, engine: DataParallelEngine, output: Output) -> None:
        self.engine = engine
        self.output = output
        self.guard = Guard()
        self.indexes: dict[str, Paths] = {}
        self.seconds: dict[str, float] = {}
        self._kind = format_of(engine.checkpoint_config)
        self._sharded = engine.topology.is_sharded
        self._training = output.folder / TRAINING_STATE

    def collect(self, step: int, progress: Mapping[str, Any]) -> None:
        """Put everything that ``checkpoint.save_contents`` names into the output. Collective."""
        parts, averaged = parts_of(self.engine.checkpoint_config, "save_contents"), self.engine.ema
        if "model" in parts:
            self._model(PRETRAINED)
            if averaged is not None:
                self._model(PRETRAINED_EMA, averaged)
        if averaged is not None and "extra" in parts:
            averages = {**averaged.shadow, EMA_UPDATES: torch.tensor(averaged.updates)}
            self._gathered(self._training / EMA_FILE, averages)
        if "optimizer" in parts and self.engine.optimizer is not None:
            self._optimizer(self.engine.optimizer)
        if "extra" in parts:
            states = gather_objects(random_state())
            if rank() == 0:
                with self.guard:
                    self._extra(states, step, progress)

    # ----------------------------------------------------------------- parts
    def _model(self, name: str, averaged: Ema | None = None) -> None:
        folder = self.output.folder / name
        tensors = weights(self.engine) if averaged is None else averaged.weights(weights(self.engine))
        policy: Any = self.engine.module
        if rank() == 0:
            with self.guard:
                self.output.ties = tied_names(policy)
                folder.mkdir(parents=True, exist_ok=True)
                policy.save_config(folder)
        if writes_shards(self._kind, sharded=self._sharded):
            paths: Paths = {f"model.{key}": ("model", key) for key in tensors}
            self._shards(folder / MODEL_SHARDS, {f"model.{key}": tensor for key, tensor in tensors.items()}, paths)
        if writes_gathered(self._kind, sharded=self._sharded):
            ties = {f"{TIED}{other}": stored for other, stored in self.output.ties.items()}
            self._gathered(folder / weights_file_name(folder), tensors, {"format": "pt", **ties})

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        state = self.engine.layout.optimizer_state(self.engine.module, optimizer)
        if rank() == 0:
            with self.guard:
                write_json(self._training / OPTIMIZER_GROUPS, group_records(self.engine))
        slots = {(name, slot): value for name, values in state.items() for slot, value in values.items()}
        if self._sharded:
            tensors = {f"optimizer.state.{name}.{slot}": value for (name, slot), value in slots.items()}
            paths: Paths = {f"optimizer.state.{n}.{s}": ("optimizer", "state", n, s) for n, s in slots}
            self._shards(self._training / OPTIMIZER_SHARDS, tensors, paths)
        else:
            tensors = {f"state/{name}/{slot}": value for (name, slot), value in slots.items()}
            self._gathered(self._training / OPTIMIZER_FILE, tensors)

    def _extra(self, states: list[dict[str, torch.Tensor]], step: int, progress: Mapping[str, Any]) -> None:
        engine, training = self.engine, self._training
        tensors = {f"rank_{index}/{key}": value for index, one in enumerate(states) for key, value in one.items()}
        save_tensors(training / RANDOM_FILE, tensors)
        if engine.schedule is not None:
            write_json(training / SCHEDULER_FILE, engine.schedule.state_dict())
        if engine.scaler is not None:
            write_json(training / SCALER_FILE, engine.scaler.state_dict())
        write_json(training / STEP_FILE, step_record(engine, step, progress))

    # ----------------------------------------------------------------- files
    def _gathered(self, path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
        """One file of whole tensors, gathered one by one: memory holds one of them besides what there was."""
        specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
        writer: SafetensorsWriter | None = None
        if rank() == 0 and self.guard.error is None:
            with self.guard:
                writer = SafetensorsWriter(path, specs, metadata)
                self.output.opened(writer)
        for name in SafetensorsWriter.order(specs):
            with self._timed("gather"):
                whole = gather(tensors[name], self.engine.device)
            if writer is not None and self.guard.error is None:
                with self.guard, self._timed("copy" if self.output.is_staged else "put"):
                    self.output.put(partial(writer.add, name), whole, own=is_spread(tensors[name]))
        if writer is not None and self.guard.error is None:
            with self.guard:
                self.output.closed(writer)

    def _shards(self, folder: Path, tensors: Tensors, paths: Paths) -> None:
        """This rank's blocks in its own file."""
        self.indexes[str(folder.relative_to(self.output.folder))] = paths
        if self.guard.error is not None:
            return
        with self.guard, self._timed("copy" if self.output.is_staged else "put"):
            writer = ShardWriter(folder, rank())
            self.output.opened(writer)
            for index, (name, tensor) in enumerate(tensors.items()):
                if is_writer(tensor, index, rank(), world_size()):
                    add = partial(_add_block, writer, name, TensorSpec.of(tensor))
                    for (offsets, _), block in regions_of(tensor):
                        self.output.put(partial(add, offsets), block)
        if self.guard.error is None:
            with self.guard:
                self.output.closed(writer)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def _add_block(
    writer: ShardWriter, name: str, spec: TensorSpec, offsets: tuple[int, ...], block: torch.Tensor
) -> None:
    writer.add(name, block, spec, offsets)
