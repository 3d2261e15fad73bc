"""The worker that steps scenes, and drives the rollout: it says what was seen, and waits for actions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from plugrl.config.schema import EnvConfig, EvalEnvConfig, RunConfig, TrainEnvConfig
from plugrl.envs.base import ChunkResult, EpisodeRecord, VecEnv
from plugrl.envs.contract import check_chunk
from plugrl.errors import PlugRLError
from plugrl.runtime.flow.residency import State
from plugrl.runtime.worker import Worker
from plugrl.workers.embodied.building import build_env, chunks_of
from plugrl.workers.embodied.filming import FilmOrder, Films
from plugrl.workers.embodied.link import EnvLink
from plugrl.workers.embodied.messages import Observation, Outcome, Seen
from plugrl.workers.embodied.scenes import Scenes

Split = Literal["train", "eval"]


@dataclass(kw_only=True)
class EnvReport:
    """What an environment worker has to say of an interaction.

    episodes: those that are over, with the numbers of their scenes through all workers. steps: actions carried out.
    seconds: in the simulator, and waiting for actions.
    """

    episodes: list[EpisodeRecord] = field(default_factory=list)
    steps: int = 0
    simulating_s: float = 0.0
    waiting_s: float = 0.0


class EnvWorker(Worker):
    """One worker's scenes, a part of them (a slice) for each pipeline stage."""

    process_group: ClassVar[bool] = False

    def __init__(self, config: RunConfig, splits: Sequence[Split], rollouts: int) -> None:
        self.config = config
        self.splits = tuple(splits)
        self.rollouts = rollouts
        self._envs: dict[Split, list[VecEnv]] = {}
        self._begun: dict[tuple[int, int], list[Observation]] = {}
        self._current: list[Observation] | None = None

    def setup(self) -> None:
        """Build the environments that the run begins with, and open this worker's end of the channels."""
        self._link = EnvLink(self, self._scenes(self.splits[0]), self.rollouts, self.config.cluster.step_timeout_s)
        self._environments(self.splits[0])

    # ----------------------------------------------------------------- training
    def prepare(self, step: int) -> None:
        """Begin the first episodes of a step, so that :meth:`interact` need not."""
        self._begun[step, 0] = self._begin(step, 0)

    def interact(self, step: int) -> EnvReport:
        """Step all scenes through the passes of a training step."""
        train = self._train
        chunks = chunks_of(self.config, train)
        assert chunks is not None, "the configuration was checked"
        report = EnvReport()
        wants_value = self._wants_value()
        for epoch in range(train.rollout_epoch):
            seen = self._first_observations(step, epoch)
            self._pass("train", epoch, seen, chunks, report, wants_value)
        return report

    def _first_observations(self, step: int, epoch: int) -> list[Observation]:
        if not self._train.reset_each_epoch and self._current is not None:
            return self._current
        begun = self._begun.pop((step, epoch), None)
        return self._begin(step, epoch) if begun is None else begun

    def _begin(self, step: int, epoch: int) -> list[Observation]:
        scenes, seed = self._scenes("train"), self.config.trainer.seed
        return [
            env.reset(seed=scenes.training_seeds(index, seed=seed, step=step, epoch=epoch))[0]
            for index, env in zip(scenes.slices_of(self.rank), self._environments("train"), strict=True)
        ]

    def _wants_value(self) -> str:
        """Return of which ends a value of the last state is wanted: none, those by time, or all."""
        if not self._train.auto_reset or self.config.algorithm.adv_estimator.lower() != "gae":
            return "none"
        return self.config.algorithm.bootstrap_type

    # ----------------------------------------------------------------- evaluation
    def evaluate(self, order: FilmOrder | None = None) -> EnvReport:
        """Step the scenes of the evaluation, which begin alike at every evaluation; film those that are ordered."""
        split = self.config.env.eval
        assert isinstance(split, EvalEnvConfig), "the configuration was checked"
        report, scenes = EnvReport(), self._scenes("eval")
        for epoch in range(split.rollout_epoch):
            seen = [
                env.reset(seed=scenes.evaluation_seeds(index, seed=split.seed, epoch=epoch))[0]
                for index, env in zip(scenes.slices_of(self.rank), self._environments("eval"), strict=True)
            ]
            films = Films(order if epoch == 0 else None, scenes, scenes.slices_of(self.rank))
            try:
                self._pass("eval", epoch, seen, chunks_of(self.config, split), report, "none", films)
            finally:
                films.close()
        return report

    # ----------------------------------------------------------------- the loop
    def _pass(
        self,
        split: Split,
        epoch: int,
        seen: list[Observation],
        chunks: int | None,
        report: EnvReport,
        wants_value: str,
        films: Films | None = None,
    ) -> None:
        """Act through one pass: while one slice is stepped the policy looks at the others."""
        scenes, envs = self._scenes(split), self._environments(split)
        restarts = self._config_of(split).auto_reset
        slices = list(scenes.slices_of(self.rank))
        for index, env, obs in zip(slices, envs, seen, strict=True):
            if films is not None:
                films.film(index, env)
            self._link.show(Seen(index=index, epoch=epoch, chunk=0, obs=obs))
        running = dict(zip(slices, envs, strict=True))
        ended = {index: torch.zeros(scenes.in_slice, dtype=torch.bool) for index in slices}
        chunk = 0
        while running:
            chunk += 1
            for stage, index in enumerate(slices):
                if index not in running:
                    continue
                began = time.perf_counter()
                actions = self._link.actions(index)
                acted = time.perf_counter()
                result = running[index].chunk_step(actions)
                check_chunk(result, scenes.in_slice, actions.shape[1], self._config_of(split).env_type)
                report.waiting_s += acted - began
                report.simulating_s += time.perf_counter() - acted
                report.steps += int(result.executed.sum())
                if films is not None:
                    films.film(index, running[index])
                    films.finish(index, result.episodes)
                over = ended[index].clone()
                ended[index] |= result.dones.any(-1)
                self._note(report, result, scenes.first(index), over if not restarts else None)
                is_last = chunk == chunks or (not restarts and bool(ended[index].all()))
                seen[stage] = result.obs
                outcome = Outcome.of(result, wanted=_wanted(result, wants_value))
                self._link.show(
                    Seen(index=index, epoch=epoch, chunk=chunk, obs=result.obs, outcome=outcome, is_last=is_last)
                )
                if is_last:
                    del running[index]
        self._current = seen if split == "train" and restarts else None

    @staticmethod
    def _note(report: EnvReport, result: ChunkResult, first: int, over: Tensor | None) -> None:
        """Keep the records of episodes; of a scene that does not restart, the first one alone (``over`` bool [N])."""
        for record in result.episodes:
            if over is None or not over[record.index]:
                report.episodes.append(record.at(first + record.index))

    # ----------------------------------------------------------------- environments
    @property
    def _train(self) -> TrainEnvConfig:
        train = self.config.env.train
        if not isinstance(train, TrainEnvConfig):
            raise PlugRLError("This run has no env.train.")
        return train

    def _config_of(self, split: Split) -> EnvConfig:
        found = self.config.env.eval if split == "eval" else self.config.env.train
        assert found is not None, "the configuration was checked"
        return found

    def _scenes(self, split: Split) -> Scenes:
        config = self._config_of(split)
        stages = self.config.rollout.pipeline_stage_num
        return Scenes(config.total_num_envs, self.world_size, stages, config.group_size)

    def _environments(self, split: Split) -> list[VecEnv]:
        """Return the environments of a split, one for each stage, which are built when they are first needed."""
        if split not in self._envs:
            scenes, built = self._scenes(split), self._envs.setdefault(split, [])
            for _ in range(scenes.stages):
                built.append(build_env(self.config, self._config_of(split), scenes.in_slice, f"env.{split}"))
        return self._envs[split]

    def reside(self, state: State) -> None:
        """Let the simulators give their device memory back, or take it again."""
        for envs in self._envs.values():
            for env in envs:
                if state == "away":
                    env.offload()
                else:
                    env.onload()

    def memory_mib(self) -> tuple[int, int]:
        """Return 0: simulators do not say what they take; ``flow.memory_mib`` may."""
        return 0, 0

    def close(self) -> None:
        """Close the environments."""
        for envs in self._envs.values():
            for env in envs:
                env.close()
        self._envs.clear()
        super().close()


def _wanted(result: ChunkResult, kind: str) -> Tensor:
    """Return bool [N]: scenes of whose last state a value is wanted; never of one whose simulator died."""
    flags = {"none": torch.zeros_like(result.dones), "standard": result.truncations, "always": result.dones}[kind]
    return flags.any(-1) & ~result.lost
