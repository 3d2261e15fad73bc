"""The driver's handles to components: they split batches, call all workers and merge what comes back."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.engines.base import Batch, BatchOptions, LossFunction
from plugrl.errors import ConfigError, PlugRLError
from plugrl.metric import Metric
from plugrl.rollouts.base import Completion, SamplingParams
from plugrl.runtime.flow.residency import State
from plugrl.runtime.group import WorkerGroup
from plugrl.runtime.handle import Handle, wait_together
from plugrl.runtime.sync import SyncReport
from plugrl.workers.dispatch import DataPlace, balanced_split, merge_rows, reduce_metrics, row_lengths, take
from plugrl.workers.residence import DeviceMemory, merged_memory
from plugrl.workers.transport import PackedCompletions
from plugrl.workers.weight_link import WeightLink, connect_weights

logger = logging.getLogger(__name__)

_VERSIONS_TIMEOUT_S = 2.0

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one rank."""

RankMetrics = list[dict[str, Metric]]
"""What a rank measured in each of several optimizer steps."""


class TrainingGroup:
    """A group of :class:`plugrl.workers.training.TrainingWorker`.

    Rows are shared out to as many parts as there are data-parallel ranks; ranks that share a model get the same part,
    and one of them answers for it.
    """

    def __init__(self, group: WorkerGroup, timeout: float) -> None:
        self.group = group
        self.timeout = timeout
        self._places: tuple[tuple[str, int], list[DataPlace]] | None = None

    def places(self) -> list[DataPlace]:
        """Return which rows each rank sees; asked once of a launch."""
        launch = (self.group.name, self.group.generation)
        if self._places is None or self._places[0] != launch:
            self._places = (launch, self.group.execute("data_place").wait(self.timeout))
        return self._places[1]

    @property
    def num_shares(self) -> int:
        """Ranks that see different rows."""
        return self.places()[0].size

    def infer(self, batch: Batch, options: BatchOptions, *, adapter: bool = True) -> dict[str, torch.Tensor]:
        """Return the outputs of the policy for all rows, in their order; ``adapter=False`` leaves its adapter out."""
        places = self.places()
        shares = balanced_split(row_lengths(batch), self.num_shares)
        per_rank: list[Arguments] = [
            ((take(batch, shares[place.rank]), options), {"adapter": adapter}) for place in places
        ]
        outputs = self.group.execute("infer", per_rank=per_rank).wait(self.timeout)
        answers = [(shares[place.rank], output) for place, output in zip(places, outputs, strict=True) if place.answers]
        return merge_rows(*zip(*answers, strict=True))

    def train(
        self, mini_batches: Sequence[Batch], loss_function: LossFunction, options: BatchOptions
    ) -> dict[str, float]:
        """Do one optimizer step for each mini-batch; returns the metrics, mean over the steps."""
        return self.metrics([self.train_some(mini_batches, loss_function, options)])

    def train_some(
        self, mini_batches: Sequence[Batch], loss_function: LossFunction, options: BatchOptions, *, last: bool = True
    ) -> list[RankMetrics]:
        """Do some of a trainer step's optimizer steps; returns what each rank measured, for :meth:`metrics`.

        The schedule of the learning rate counts trainer steps: it advances with the ``last`` of them.
        """
        shards = [[take(batch, share) for share in self._shares(batch)] for batch in mini_batches]
        per_rank: list[Arguments] = [
            (([shard[place.rank] for shard in shards], loss_function, options), {"last": last})
            for place in self.places()
        ]
        ranks: list[RankMetrics] = self.group.execute("train", per_rank=per_rank).wait(self.timeout)
        return ranks

    def metrics(self, parts: Sequence[list[RankMetrics]]) -> dict[str, float]:
        """Reduce what :meth:`train_some` measured in all parts of a trainer step."""
        answering = [rank for rank, place in enumerate(self.places()) if place.answers]
        metrics = reduce_metrics([[one for part in parts for one in part[rank]] for rank in answering])
        if not math.isfinite(metrics.get("grad_norm", 0.0)):
            logger.warning(
                "%s: a gradient was not finite, its optimizer step was skipped (%d so far).",
                self.group.name, metrics.get("skipped_steps", 1),
            )  # fmt: skip
        return metrics

    def _shares(self, batch: Batch) -> list[torch.Tensor]:
        return balanced_split(row_lengths(batch), self.num_shares)

    def reside(self, state: State) -> None:
        """Bring the component to its devices, see :class:`plugrl.runtime.flow.residency.Resident`."""
        self.group.execute("reside", state).wait(self.timeout)

    def memory_mib(self) -> tuple[int, int]:
        """Return the most MiB that a rank's weights take on its device, and all that it holds there."""
        found = self.group.execute("memory_mib").wait(self.timeout)
        return max(weights for weights, _ in found), max(whole for _, whole in found)

    def device_memory(self) -> DeviceMemory:
        """Return the largest peak of a rank since it was last asked, and the memory of the smallest device."""
        return merged_memory(self.group.execute("device_memory").wait(self.timeout))

    def profile(self, on: bool) -> None:
        """Start or stop the platform's profiler on all ranks."""
        self.group.execute("profile", on).wait(self.timeout)

    def save(self, directory: Path, step: int, progress: Mapping[str, Any] | None = None) -> None:
        """Write weights and training state of all ranks into ``directory``, perhaps in the background.

        ``progress``: what the run alone knows and a checkpoint records.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.group.execute("save", str(directory), step, progress).wait(self.timeout)

    def load(self, directory: Path, progress: Mapping[str, Any] | None = None) -> None:
        """Read what :meth:`save` wrote, perhaps with another number of ranks."""
        self.group.execute("load", str(directory), progress).wait(self.timeout)

    def close(self) -> None:
        """End the workers."""
        self.group.close()


class RolloutGroup:
    """A group of :class:`plugrl.workers.rollout.RolloutWorker` that share out the prompts."""

    def __init__(
        self,
        group: WorkerGroup,
        timeout: float,
        bucket_megabytes: int,
        sync: WeightSyncConfig | None = None,
        *,
        ranks_per_engine: int = 1,
    ) -> None:
        self.group = group
        self.span = ranks_per_engine
        self.timeout = timeout
        self.bucket_megabytes = bucket_megabytes
        self.sync = sync or WeightSyncConfig()
        self.weight_version = 0
        self.last_sync: SyncReport | None = None
        self._link: WeightLink | None = None

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample ``params.n`` completions of each prompt, ordered by prompt, then sample.

        The result does not depend on the number of workers: prompt i uses ``seeds[i]`` wherever it is generated.
        """
        engines, nothing = self.group.size // self.span, torch.empty(0, dtype=torch.long)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        split = balanced_split(lengths, engines) if len(prompts) else [nothing] * engines
        # Only the first rank of an engine is asked.
        shares = [share for part in split for share in (part, *[nothing] * (self.span - 1))]
        per_rank: list[Arguments] = [
            (([prompts[i] for i in share], params, [seeds[i] for i in share]), {})
            for share in (share.tolist() for share in shares)
        ]
        answers: list[PackedCompletions] = self.group.execute("generate", per_rank=per_rank).wait(self.timeout)
        completions: list[list[Completion]] = [[] for _ in prompts]
        for share, answer in zip(shares, answers, strict=True):
            for completion in answer.unpack():
                prompt = int(share[completion.prompt_index])
                completions[prompt].append(replace(completion, prompt_index=prompt))
        return [completion for group in completions for completion in group]

    def check_engines(self) -> str:
        """Return name and version of the library that generates. Raises ConfigError where ranks have different ones."""
        found: dict[str, list[int]] = {}
        for rank, version in enumerate(self.group.execute("engine_version").wait(self.timeout)):
            if version:
                found.setdefault(version, []).append(rank)
        if len(found) > 1:
            told = "; ".join(f"{version} on rank {', '.join(map(str, ranks))}" for version, ranks in found.items())
            raise ConfigError(
                f"cluster.node_groups: the ranks of {self.group.name} generate with different engines, {told}. Give "
                "the nodes interpreters (env_configs.python_interpreter_path) with one version."
            )
        return next(iter(found), "")

    def update_weights(self, actor: TrainingGroup, version: int) -> None:
        """Bring the actor's weights into every rollout worker as ``version``.

        Raises WeightSyncError when the weights of the two do not fit, before anything is sent. An error of a worker is
        raised as it is, with a note on which rollout worker has which version.
        """
        if self._link is None or not self._link.joins(actor.group, self.group):
            self._link = connect_weights(
                actor.group, self.group, self.sync, bucket_megabytes=self.bucket_megabytes, timeout=self.timeout
            )
        link = self._link
        receiving = self.group.execute("receive_weights", link.route, version, adapter=link.adapter)
        sending = actor.group.execute("send_weights", link.route, version, merged=link.adapter is None)
        try:
            reports = wait_together([sending, receiving], self.timeout)[0]
        except PlugRLError as error:
            error.add_note(f"Weights of version {version} were being sent. {self.describe_versions()}")
            raise
        self.last_sync = next(report for report in reports if report is not None)
        self.weight_version = version

    def describe_versions(self) -> str:
        """Say which rollout worker has weights of which version, as far as they answer within a few seconds."""
        found: dict[str, list[int]] = {}
        asked: dict[int, Handle[list[Any]]] = {}
        for rank in range(self.group.size):
            with suppress(PlugRLError):
                asked[rank] = self.group.execute("weight_version", ranks=[rank])
        deadline = time.monotonic() + _VERSIONS_TIMEOUT_S
        for rank in range(self.group.size):
            state = "no answer"
            if rank in asked:
                with suppress(PlugRLError):
                    state = f"version {asked[rank].wait(max(deadline - time.monotonic(), 0.0))[0]}"
            found.setdefault(state, []).append(rank)
        parts = [f"{state} on rank {', '.join(map(str, ranks))}" for state, ranks in found.items()]
        return f"{self.group.name} has {'; '.join(parts)}."

    def reside(self, state: State) -> None:
        """Bring the component to its devices, see :class:`plugrl.runtime.flow.residency.Resident`."""
        self.group.execute("reside", state).wait(self.timeout)

    def memory_mib(self) -> tuple[int, int]:
        """Return the most MiB that a rank's weights take on its device, and all that it holds there."""
        found = self.group.execute("memory_mib").wait(self.timeout)
        return max(weights for weights, _ in found), max(whole for _, whole in found)

    def device_memory(self) -> DeviceMemory:
        """Return the largest peak of a rank since it was last asked, and the memory of the smallest device."""
        return merged_memory(self.group.execute("device_memory").wait(self.timeout))

    def close(self) -> None:
        """End the workers."""
        self.group.close()
