"""The worker that acts: it answers what environments show it, and writes the trajectories down."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugrl.config.embodied_checks import chunk_of
from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError, UserError
from plugrl.models.base import BasePolicy
from plugrl.workers.embodied.backend import PolicyBackend
from plugrl.workers.embodied.building import chunks_of
from plugrl.workers.embodied.keywords import accepted
from plugrl.workers.embodied.link import ActingLink
from plugrl.workers.embodied.messages import Seen
from plugrl.workers.embodied.packed import PackedTensors
from plugrl.workers.embodied.recorder import Recorder
from plugrl.workers.embodied.scenes import Scenes, acting_seed, every_slice
from plugrl.workers.rollout import RolloutWorker


@dataclass(frozen=True, kw_only=True)
class ActingReport:
    """What a rollout worker brings of a step.

    parts: trajectories by (pass, slice). actions: chunks that were given, in all scenes. acting_s: seconds in the
    policy. waiting_s: seconds waiting for environments.
    """

    parts: Mapping[tuple[int, int], PackedTensors]
    actions: int
    acting_s: float
    waiting_s: float


class ActingWorker(RolloutWorker):
    """One worker with a copy of the policy; the slices of scenes are shared out to all of them."""

    backend: PolicyBackend

    def __init__(self, config: RunConfig, env_workers: int, *, shares_device: bool = False) -> None:
        super().__init__(config.model.without_adapter(), config.rollout, shares_device=shares_device)
        self.config = config
        self.env_workers = env_workers

    def setup(self) -> None:
        """Build the policy and open this worker's end of the channels."""
        torch.manual_seed(self.config.trainer.seed)
        self.backend = PolicyBackend(self.model, self.rollout)
        self.backend.initialize()
        self._link = ActingLink(self, self.config.cluster.step_timeout_s)

    def interact(self, step: int) -> ActingReport:
        """Act in the passes of a training step and return what was done, with what came of it."""
        train = self.config.env.train
        assert train is not None, "the configuration was checked"
        chunks = chunks_of(self.config, train)
        assert chunks is not None, "the configuration was checked"
        stages = self.config.rollout.pipeline_stage_num
        scenes = Scenes(train.total_num_envs, self.env_workers, stages, train.group_size)
        rollout = self.config.rollout
        session = _Acting(self, scenes, step, mode="train", sampling=_sampling(rollout))
        session.run(train.rollout_epoch, chunks, restarts=train.auto_reset)
        if self.shares_device:
            self.platform.empty_cache()
        return session.report()

    def evaluate(self) -> None:
        """Act in the scenes of an evaluation, where nothing is written down."""
        split = self.config.env.eval
        assert split is not None, "the configuration was checked"
        stages = self.config.rollout.pipeline_stage_num
        scenes = Scenes(split.total_num_envs, self.env_workers, stages, split.group_size)
        values = self.config.rollout.val_kwargs
        greedy = not values.do_sample or values.temperature == 0
        sampling = {"temperature": 0.0} if greedy else _sampling(values)
        session = _Acting(self, scenes, 0, mode="eval" if greedy else "train", sampling=sampling)
        session.run(split.rollout_epoch, None, restarts=split.auto_reset)
        if self.shares_device:
            self.platform.empty_cache()


class _Acting:
    """One interaction: the passes of all slices of this worker, in whatever order their environments are ready."""

    def __init__(
        self, worker: ActingWorker, scenes: Scenes, step: int, *, mode: str, sampling: Mapping[str, Any]
    ) -> None:
        self._link, self._scenes, self._step, self._mode = worker._link, scenes, step, mode
        self._seed = worker.config.trainer.seed
        self._policy: BasePolicy = worker.backend.acting()
        self._version = worker.backend.weight_version
        self._slices = every_slice(scenes, worker.rank, worker.world_size)
        self._shape = chunk_of(worker.config), getattr(worker.config.model, "action_dim", None)
        self._with_values = "values" in self._policy.capabilities() and bool(
            getattr(worker.config.model, "add_value_head", True)
        )
        self._given = accepted(self._policy.predict_action_batch, {**sampling, "generator": None})
        self._generators: dict[tuple[int, int], torch.Generator] = {}
        self._recorders: dict[tuple[int, int], Recorder] = {}
        self._parts: dict[tuple[int, int], PackedTensors] = {}
        self._actions, self._acting_s, self._waiting_s = 0, 0.0, 0.0

    def run(self, epochs: int, chunks: int | None, *, restarts: bool) -> None:
        """Answer until every pass of every slice is over; with ``chunks`` their trajectories are kept."""
        self._chunks, self._restarts = chunks, restarts
        left = len(self._slices) * epochs
        while left:
            began = time.perf_counter()
            seen = self._link.next()
            shown = time.perf_counter()
            self._waiting_s += shown - began
            left -= self._answer(seen)
            self._acting_s += time.perf_counter() - shown

    def report(self) -> ActingReport:
        """Return what was written down."""
        return ActingReport(
            parts=self._parts, actions=self._actions, acting_s=self._acting_s, waiting_s=self._waiting_s
        )

    def _answer(self, seen: Seen) -> bool:
        """Act where actions are wanted, before anything is written down; whether the pass of the slice is over."""
        key = (seen.epoch, seen.index)
        result: dict[str, Any] = {}
        if not seen.is_last:
            actions, result = self._act(seen, key)
            self._link.act(self._scenes, seen.index, actions)
            self._actions += actions.shape[0]
        if self._chunks is not None:
            if key not in self._recorders:
                self._recorders[key] = Recorder(self._chunks, self._version)
            recorder = self._recorders[key]
            if seen.outcome is not None:
                recorder.happened(seen.chunk - 1, seen.outcome, self._bootstrap(seen))
            if seen.is_last:
                values = self._policy.predict_values(seen.obs) if self._with_values else None
                trajectory = recorder.finish(values, restarts=self._restarts)
                self._parts[key] = trajectory.check(self._shape[1]).pack()
                del self._recorders[key]
            else:
                if result.get("prev_logprobs") is None:
                    raise UserError(
                        f"{type(self._policy).__name__} gives no log-probabilities, so it cannot be trained by "
                        f"reinforcement: choose a head that draws actions, or train it with plugrl sft."
                    )
                logprobs = self._shaped(result["prev_logprobs"])
                values = result.get("prev_values") if self._with_values else None
                if self._with_values and values is None:
                    raise UserError(f"{type(self._policy).__name__} gave no prev_values, though it has a value head.")
                recorder.acted(seen.chunk, logprobs, values, result["forward_inputs"])
        return seen.is_last

    def _act(self, seen: Seen, key: tuple[int, int]) -> tuple[Tensor, dict[str, Any]]:
        given = dict(self._given)
        if "generator" in given:
            if key not in self._generators:
                self._generators[key] = torch.Generator().manual_seed(acting_seed(self._seed, self._step, *key))
            given["generator"] = self._generators[key]
        elif seen.chunk == 0 and self._mode == "train":
            torch.manual_seed(acting_seed(self._seed, self._step, *key))
        actions, result = self._policy.predict_action_batch(
            seen.obs, mode=self._mode, compute_values=self._with_values and self._chunks is not None, **given
        )
        actions = torch.as_tensor(actions, dtype=torch.float32).cpu()
        return self._shaped(actions, "actions"), result

    def _shaped(self, tensor: Tensor, name: str = "prev_logprobs") -> Tensor:
        """Return [N, C, D] of what may be flat. Raises ConfigError where it does not fit the configuration."""
        chunk, numbers = self._shape
        size = tensor.shape[1:].numel()
        wanted = chunk * numbers if numbers is not None else None
        if (wanted is not None and size != wanted) or size % chunk:
            raise ConfigError(
                f"model.num_action_chunks: the policy gave {name} of shape {list(tensor.shape)}, but {chunk} actions "
                f"of {numbers} numbers are expected (model.num_action_chunks, model.action_dim)."
            )
        return tensor.reshape(tensor.shape[0], chunk, -1)

    def _bootstrap(self, seen: Seen) -> Tensor | None:
        """Return the values [N] of last states where they are wanted, else 0; None for a policy without values."""
        outcome = seen.outcome
        if not self._with_values or outcome is None:
            return None
        values = torch.zeros(outcome.rewards.shape[0])
        if outcome.final_rows is not None and outcome.final_obs is not None:
            found = self._policy.predict_values(outcome.final_obs).float().cpu()
            values[outcome.final_rows] = found.reshape(found.shape[0], -1)[:, 0]
        return values


def _sampling(section: Any) -> dict[str, Any]:
    """Return how actions are drawn, under the names of policies, for which a ``top_k`` of 0 is all."""
    return {"temperature": section.temperature, "top_k": max(section.top_k, 0), "top_p": section.top_p}


def slices_in_order(parts: Sequence[Mapping[tuple[int, int], PackedTensors]]) -> list[PackedTensors]:
    """Return the trajectories of all workers, pass by pass, and in a pass scene by scene."""
    merged = {key: part for found in parts for key, part in found.items()}
    return [merged[key] for key in sorted(merged)]
