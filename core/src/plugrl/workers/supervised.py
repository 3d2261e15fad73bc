"""The worker of supervised training: it reads its own samples, so that no batch travels from the driver.

Its methods take and give plain values: Ray and torchrun call them alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from plugrl.checkpoints import write_json
from plugrl.checkpoints.shared import check_probe
from plugrl.config.schema import RunConfig
from plugrl.data.feed import Feed
from plugrl.data.plan import DataPlan, Position, held_out_rows
from plugrl.data.samples import Samples
from plugrl.engines.base import BatchOptions
from plugrl.errors import ConfigError
from plugrl.metric import Metric
from plugrl.models.base import BasePolicy
from plugrl.workers.demonstrations import (
    DemonstrationInputs,
    acts_in_environments,
    check_statistics,
    save_statistics,
    with_statistics,
    with_statistics_in_full,
)
from plugrl.workers.objectives import SupervisedObjective
from plugrl.workers.processing import Processing
from plugrl.workers.reduction import MetricReducer
from plugrl.workers.sources import supervised_samples
from plugrl.workers.training import EngineSpec, TrainingWorker

WEIGHTS = "pretrained_model"
TRAIN_CONFIG = "train_config.json"
"""The whole configuration of the run that wrote a checkpoint, beside the weights."""

AVERAGED_WEIGHTS = "pretrained_model_ema"


class SupervisedWorker(TrainingWorker):
    """One data-parallel rank of supervised training. Methods marked collective must be called on all ranks."""

    def __init__(self, spec: EngineSpec, config: RunConfig) -> None:
        super().__init__(spec)
        self.config = config
        self._feed: Feed | None = None

    def setup(self) -> None:
        """Build engine, data and processors. Collective."""
        sft, splits = self.config.sft, supervised_samples(self.config)
        if acts_in_environments(self.config):  # the policy is built with the scale of what it is to learn
            self.spec = replace(self.spec, model=with_statistics(self.config, splits).model)
        super().setup()
        rank, size = self.engine.get_data_parallel_rank(), self.engine.get_data_parallel_size()
        self._val: Samples | None = splits.val
        self._processing: Processing | DemonstrationInputs = (
            DemonstrationInputs(cast(BasePolicy, self.engine.module), splits.train)
            if acts_in_environments(self.config)
            else Processing.fresh(splits, sft.normalization)
        )
        plan = DataPlan(
            num_samples=len(splits.train),
            batch_size=samples_per_worker(self.config, size),
            world_size=size,
            seed=self.config.trainer.seed if self.config.data.seed is None else self.config.data.seed,
            shuffle=self.config.data.shuffle,
            drop_last=sft.drop_last,
        )
        self._feed = Feed(plan, splits.train, rank)
        self._objective = SupervisedObjective()
        self._reduce = MetricReducer(self.engine.get_data_parallel_group(), self.platform.device_name)

    @property
    def feed(self) -> Feed:
        """The batches of this rank."""
        assert self._feed is not None, "setup() was not called"
        return self._feed

    def describe(self) -> dict[str, Any]:
        """Return the counts that a start banner shows, and what the driver needs to know of the data."""
        parameters = list(self.engine.module.parameters())  # numel() of a sharded tensor is that of the whole
        topology, plan = self.engine.topology, self.feed.plan
        return {
            "samples": plan.num_samples,
            "held_out_samples": 0 if self._val is None else len(self._val),
            "batch_size": plan.batch_size,
            "dp_replicate": topology.dp_replicate,
            "dp_shard": topology.dp_shard,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            "steps_per_epoch": plan.steps_per_epoch,
        }

    def step(self, position: Mapping[str, int], window: int, window_index: int) -> dict[str, float]:
        """Do one loop step at ``position`` in the data; returns the metrics over all ranks. Collective.

        ``window`` steps make one optimizer update, of which this is the one with ``window_index``.
        """
        began = time.perf_counter()
        batch = self._processing.before(self.feed.batch(Position.from_dict(position)))
        waited = time.perf_counter() - began
        options = BatchOptions(
            micro_batch_size=self.config.sft.micro_batch_size_per_gpu,
            forward_type="sft",
            window=window,
            window_index=window_index,
        )
        with self.engine.train_mode(zero_grad_on_exit=options.closes_window):
            result = self.engine.train_batch(batch, self._objective, options)
        # Work may still be queued on the device; without waiting, the next phase would be charged for it.
        self.platform.synchronize()
        seconds = time.perf_counter() - began
        return self._reduce(
            {**result.metrics, "timing_s/data": Metric(waited, "max"), "timing_s/train": Metric(seconds, "max")}
        )

    def measure(self) -> dict[str, float]:
        """Return the loss on the held-out samples, each of which counts once; empty without any. Collective."""
        if self._val is None or not len(self._val):
            return {}
        rank, size = self.engine.get_data_parallel_rank(), self.engine.get_data_parallel_size()
        rows, batch_size = held_out_rows(len(self._val), rank, size), self.feed.plan.batch_size
        options = BatchOptions(micro_batch_size=self.config.sft.micro_batch_size_per_gpu, forward_type="sft")
        total = weight = 0.0
        with self.engine.evaluation_weights(), self.engine.eval_mode():
            # As many batches of equal size on every rank, since each holds collectives; fillers do not count.
            most = math.ceil(len(self._val) / size)
            for start in range(0, most, batch_size):
                own = rows[start : start + batch_size]
                filled = own + [0] * (min(batch_size, most - start) - len(own))
                batch = self._processing.before(self._val.batch(filled))
                outputs = self.engine.infer_batch(batch, options=options).outputs
                loss, count = self._objective.held_out(outputs, batch, len(own))
                total, weight = total + loss, weight + count
        return self._reduce({"val/loss": Metric(total / weight if weight else 0.0, "mean", weight)})

    def write(self, directory: str, step: int, progress: Mapping[str, Any], train_config: Mapping[str, Any]) -> None:
        """Write weights, training state, processors and the run's configuration into ``directory``. Collective.

        ``progress`` is what ``training_step.json`` holds beside what the engine knows.
        """
        self.engine.save_checkpoint(directory, global_step=step, progress=dict(progress))
        values = with_statistics_in_full(train_config, self.spec.model)
        if self.engine.get_data_parallel_rank() == 0 and self.engine.is_mp_src_rank_with_outputs():
            for name in (WEIGHTS, AVERAGED_WEIGHTS):
                folder = Path(directory) / name
                if name == WEIGHTS or folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True)
                    write_json(folder / TRAIN_CONFIG, values)
                    save_statistics(values, folder)
                    self._processing.save(folder)

    def restore(self, directory: str, progress: Mapping[str, Any]) -> None:
        """Go on from what :meth:`write` wrote. The random state comes last. Collective.

        ``progress`` holds the settings of this run, to be compared with those of the checkpoint's. Raises ConfigError
        where the policy would scale by other statistics than the checkpoint's.
        """
        check_statistics(self.spec.model, Path(directory), WEIGHTS, TRAIN_CONFIG)
        self._processing = self._processing.restored(Path(directory) / WEIGHTS)
        self.engine.load_checkpoint(directory, progress=dict(progress))

    def check_folder(self, probe: str) -> None:
        """Raise CheckpointError unless this rank sees the file that rank 0 placed in the folder. Collective."""
        check_probe(probe, self.context.node_ip or self.context.node_id)
        self._reduce({})  # returns when all have looked, so that the file may go

    def close(self) -> None:
        """Stop reading, then what the base class frees."""
        if self._feed is not None:
            self._feed.close()
        super().close()


def samples_per_worker(config: RunConfig, world_size: int) -> int:
    """Return how many samples each worker takes at one step.

    Raises ConfigError when ``sft.train_batch_size`` cannot be shared out evenly.
    """
    sft = config.sft
    if sft.batch_size is not None:
        return sft.batch_size
    each, rest = divmod(sft.train_batch_size, world_size)
    if rest or not each:
        raise ConfigError(
            f"sft.train_batch_size: {sft.train_batch_size} cannot be shared out evenly to {world_size} workers. "
            "Give sft.batch_size, the examples of each worker."
        )
    return each
