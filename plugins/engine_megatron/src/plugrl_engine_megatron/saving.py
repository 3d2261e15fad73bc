"""What goes into a checkpoint: a gathered file of the weights, and each rank's blocks of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.checkpoints.layout import (
    MODEL_SHARDS,
    OPTIMIZER_GROUPS,
    OPTIMIZER_SHARDS,
    PRETRAINED,
    RANDOM_FILE,
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
from plugrl.checkpoints.tensors import save_tensors, write_json
from plugrl.errors import CheckpointError
from plugrl_engine_fsdp.checkpoint.collecting import Guard, Paths
from plugrl_engine_fsdp.checkpoint.contents import FORMAT_VERSION, format_of, parts_of, tied_names
from plugrl_engine_fsdp.checkpoint.output import Output
from plugrl_engine_fsdp.checkpoint.saving import Saver
from plugrl_engine_fsdp.checkpoint.step_record import PROGRESS_KEYS
from plugrl_engine_fsdp.distributed import gather_objects, rank, world_size
from plugrl_engine_fsdp.random_state import random_state
from plugrl_engine_megatron.boxes import Held
from plugrl_engine_megatron.holdings import STEP

if TYPE_CHECKING:
    from plugrl_engine_megatron.engine import MegatronEngine

SLOTS = ("exp_avg", "exp_avg_sq", STEP)
"""What AdamW keeps of each parameter."""
_HYPER = ("lr", "betas", "eps", "weight_decay")


def saver() -> Saver:
    """Return what saves this engine: the other engines' saver with this one's contents."""
    return Saver(collector=Collector)


class Collector:
    """Puts the state of an engine into an output; see :class:`plugrl_engine_fsdp.checkpoint.collecting.Collector`."""

    def __init__(self, engine: MegatronEngine, output: Output) -> None:
        self.engine = engine
        self.output = output
        self.guard = Guard()
        self.indexes: dict[str, Paths] = {}
        self.seconds: dict[str, float] = {}
        self._kind = format_of(engine.checkpoint_config)
        self._training = output.folder / TRAINING_STATE

    def collect(self, step: int, progress: Mapping[str, Any]) -> None:
        """Put everything that ``checkpoint.save_contents`` names into the output. Collective."""
        parts = parts_of(self.engine.checkpoint_config, "save_contents")
        if "model" in parts:
            self._model()
        if "optimizer" in parts and self.engine.optimizer is not None:
            self._optimizer()
        if "extra" in parts:
            states = gather_objects(random_state())
            if rank() == 0:
                with self.guard:
                    self._extra(states, step, progress)

    # ----------------------------------------------------------------- parts
    def _model(self) -> None:
        engine, folder = self.engine, self.output.folder / PRETRAINED
        shapes, sharded = engine.module.tensor_shapes(), world_size() > 1
        if rank() == 0:
            with self.guard:
                self.output.ties = tied_names(engine.module.outline)
                folder.mkdir(parents=True, exist_ok=True)
                engine.module.save_config(folder)
        if writes_shards(self._kind, sharded=sharded):
            paths: Paths = {f"model.{name}": ("model", name) for name in shapes}
            held = (("model." + one.block.key, one) for one in engine.holdings.weights())
            self._shards(folder / MODEL_SHARDS, held, paths)
        if writes_gathered(self._kind, sharded=sharded):
            self._gathered(folder / weights_file_name(folder), shapes)

    def _gathered(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """One file of whole tensors; memory holds one of them besides what there was."""
        specs = {name: TensorSpec(self.engine.weights_dtype, shape) for name, shape in shapes.items()}
        writer: SafetensorsWriter | None = None
        if rank() == 0 and self.guard.error is None:
            with self.guard:
                ties = {f"{TIED}{other}": stored for other, stored in self.output.ties.items()}
                writer = SafetensorsWriter(path, specs, {"format": "pt", **ties})
                self.output.opened(writer)
        order = {name: shapes[name] for name in SafetensorsWriter.order(specs)}
        for name, whole in self.engine.stream(order):
            if writer is not None and self.guard.error is None:
                with self.guard:
                    self.output.put(partial(writer.add, name), whole, own=True)
        if writer is not None and self.guard.error is None:
            with self.guard:
                self.output.closed(writer)

    def _optimizer(self) -> None:
        engine = self.engine
        names = list(engine.module.tensor_shapes())
        if rank() == 0:
            with self.guard:
                write_json(self._training / OPTIMIZER_GROUPS, self._groups(names))
        paths: Paths = {
            f"optimizer.state.{name}.{slot}": ("optimizer", "state", name, slot) for name in names for slot in SLOTS
        }
        held = ((f"optimizer.state.{one.block.key}.{slot}", one) for slot, one in engine.holdings.states())
        counters = {
            f"optimizer.state.{name}.{STEP}": value for name, value, gives in engine.holdings.steps() if gives
        }
        self._shards(self._training / OPTIMIZER_SHARDS, held, paths, counters)

    def _groups(self, names: list[str]) -> list[dict[str, Any]]:
        """The optimizer's groups as plain values, their parameters by name."""
        groups = self.engine.optimizer.param_groups
        rates = dict.fromkeys(group["max_lr"] for group in groups)
        found = []
        for rate in rates:
            group = next(one for one in groups if one["max_lr"] == rate)
            is_head = len(rates) > 1 and rate != self.engine.base_lr
            params = [name for name in names if len(rates) == 1 or name.startswith("score.") == is_head]
            found.append({**{key: group[key] for key in _HYPER}, "params": params})
        return found

    def _extra(self, states: list[dict[str, torch.Tensor]], step: int, progress: Mapping[str, Any]) -> None:
        engine, training = self.engine, self._training
        tensors = {f"rank_{index}/{key}": value for index, one in enumerate(states) for key, value in one.items()}
        save_tensors(training / RANDOM_FILE, tensors)
        if engine.schedule is not None:
            write_json(training / SCHEDULER_FILE, engine.schedule.state_dict())
        write_json(training / STEP_FILE, step_record(engine, step, progress))

    # ----------------------------------------------------------------- files
    def _shards(
        self,
        folder: Path,
        held: Iterable[tuple[str, Held]],
        paths: Paths,
        whole: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """This rank's blocks, and whole tensors that it gives, in its own file."""
        self.indexes[str(folder.relative_to(self.output.folder))] = paths
        if self.guard.error is not None:
            return
        with self.guard:
            writer = ShardWriter(folder, rank())
            self.output.opened(writer)
            for name, one in held:
                if one.is_owner and one.block.count:
                    self._put(writer, name, one.read(), one.shape, one.block.offsets)
            for name, value in (whole or {}).items():
                self._put(writer, name, value, tuple(value.shape), (0,) * value.dim())
        if self.guard.error is None:
            with self.guard:
                self.output.closed(writer)

    def _put(
        self, writer: ShardWriter, name: str, values: torch.Tensor, shape: tuple[int, ...], offsets: tuple[int, ...]
    ) -> None:
        spec = TensorSpec(values.dtype, shape)
        self.output.put(lambda block: writer.add(name, block, spec, offsets), values)


def step_record(engine: MegatronEngine, step: int, progress: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``training_step.json``. Raises CheckpointError for a key that the engine itself tells."""
    own = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "optimizer_updates": engine.updates,
        "skipped_steps": engine.skipped_steps,
        "engine": type(engine).__name__,
        **settings_of(engine),
    }
    clash = sorted(own.keys() & progress.keys())
    if clash:
        raise CheckpointError(f"training_step.json: {clash[0]} is the engine's to tell")
    return {**own, **dict.fromkeys(PROGRESS_KEYS), **progress}


def settings_of(engine: MegatronEngine) -> dict[str, Any]:
    """How this run computes: what is compared when another one goes on from it."""
    return {
        "dp_world_size": engine.get_data_parallel_size(),
        "precision": str(engine.dtype).removeprefix("torch."),
        "strategy": "megatron",
        "parallelism": {"dp_replicate": engine.get_data_parallel_size(), "dp_shard": 1},
    }
