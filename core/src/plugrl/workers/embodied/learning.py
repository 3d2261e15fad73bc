"""The training worker of a policy that acts: it gets the rows of a step once, and goes through them in mini-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.engines.base import BatchOptions
from plugrl.metric import Metric
from plugrl.workers.embodied.keywords import accepted
from plugrl.workers.embodied.objective import EmbodiedObjective
from plugrl.workers.embodied.packed import PackedTensors
from plugrl.workers.training import TrainingWorker


class LearningWorker(TrainingWorker):
    """One rank that trains. Methods marked collective must be called on all ranks."""

    def learn(
        self,
        rows: PackedTensors,
        mini_batches: Sequence[NDArray[np.int64]],
        objective: EmbodiedObjective,
        micro_batch_size: int | None,
        forward_kwargs: Mapping[str, Any],
    ) -> list[dict[str, Metric]]:
        """Do one optimizer step for each mini-batch and advance the schedule once; metrics of each. Collective.

        ``rows`` are all rows of the step, ``mini_batches`` which of them make one, for all ranks together: this rank
        takes its share of each.
        """
        if not mini_batches:
            return [{"lr": Metric(self.engine.lr_scheduler_step())}]
        rank, size = self.engine.get_data_parallel_rank(), self.engine.get_data_parallel_size()
        policy: Any = self.engine.module
        options = BatchOptions(
            micro_batch_size=micro_batch_size,
            forward_kwargs=accepted(type(policy).default_forward.__get__(policy), forward_kwargs),
        )
        metrics = []
        with self.engine.train_mode():
            for position, indices in enumerate(mini_batches):
                batch = rows.take(np.array_split(indices, size)[rank])
                last = position == len(mini_batches) - 1
                result = self.engine.train_batch(batch, objective, options, update_lr_scheduler=last)
                metrics.append(result.metrics)
        # Work may still be queued on the device; without waiting, the next phase would be charged for it.
        self.platform.synchronize()
        if self.spec.shares_device:
            self.platform.empty_cache()
        return metrics
