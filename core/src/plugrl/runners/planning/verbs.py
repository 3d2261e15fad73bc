"""The verbs of a step on a component that runs alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from plugrl.algorithms import make_kl_controller
from plugrl.config.schema import RunConfig
from plugrl.models.processor import TextProcessor
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import Components
from plugrl.runners.experience import Experience
from plugrl.runners.needs import Needs
from plugrl.runners.portions import Portions
from plugrl.runners.prompts import PromptBatch
from plugrl.runners.rl_verbs import RlVerbs
from plugrl.runners.step import Step
from plugrl.runtime.flow import DRIVER, Item, Stage, StageSpec
from plugrl.workers.groups import RolloutGroup, TrainingGroup


class AloneVerbs(RlVerbs):
    """Runs the verbs of one component on real samples; what components that are not there would add is made up.

    Only the time is of interest, which does not depend on the values of log-probabilities and values.
    """

    def __init__(
        self, config: RunConfig, components: Components, processor: TextProcessor, reward: RewardManager
    ) -> None:
        # Not the base's: that wants actor and rollout both there, and takes care of who is on which device.
        self.config = config
        self.components = components
        self.actor = cast(TrainingGroup, components.actor)
        self.rollout = cast(RolloutGroup, components.rollout)
        self.processor = processor
        self.reward = reward
        self.needs = Needs(config)
        self.kl_controller = make_kl_controller(**config.algorithm.kl_ctrl.model_dump())
        self._step = Step(config.trainer.critic_warmup + 1)
        self._greedy = {}
        self._updates = []
        self.made_up_scores = False

    def sample_all(self, batch: PromptBatch, stages: Sequence[StageSpec]) -> Experience:
        """Draw a batch, judge it, and add all that any component would read."""
        self._batch = batch
        item = _item(stages[0], 0, len(batch.prompts))
        experience = self.sample(item)
        add_stand_ins(experience)
        for stage in stages:
            if stage.run is RlVerbs.sample_greedily or (stage.component == DRIVER and stage.run is not RlVerbs.sample):
                stage.run(self, experience, item)
        if self.config.algorithm.filter_groups.enable and not len(experience.informative_rows()):
            # Training would do nothing at all with these, which says nothing of how long it takes.
            self.made_up_scores = True
            differ = [replace(result, score=float(row % 2)) for row, result in enumerate(experience.results)]
            experience.add_scores(differ)
        return experience

    def timed(self, stages: Sequence[StageSpec], batch: PromptBatch, rows: Portions | None, count: int) -> float:
        """Run stages on the last ``count`` prompts of a batch and return the seconds; without ``rows`` they sample."""
        total = len(batch.prompts)
        self._batch, self._updates = batch, []
        began = time.perf_counter()
        if rows is None:
            self._run(stages, None, total - count, total)
        else:
            with rows.view(total - count, total) as experience:
                self._run(stages, experience, total - count, total)
        return time.perf_counter() - began

    def _run(self, stages: Sequence[StageSpec], experience: Experience | None, start: int, stop: int) -> None:
        for stage in stages:
            item = _item(stage, start, stop)
            if stage.run is RlVerbs.sample:
                experience = self.sample(item)
            else:
                stage.run(self, experience, item)


def portions_of(experience: Experience, total: int, sizes: Sequence[int], pad_token_id: int) -> Portions:
    """Return the rows of a batch in pieces that portions of these sizes are made of."""
    rows = Portions.for_sizes(total, sizes, pad_token_id)
    rows.put(0, total, experience)
    return rows


def add_stand_ins(experience: Experience) -> None:
    """Add what actor, reference and critic would: of the right shape, with the rollout's probabilities."""
    tensors = experience.tensors
    rollout = tensors["rollout_log_probs"]
    for name in ("old_log_probs", "recomputed_log_probs", "ref_log_probs"):
        tensors[name] = rollout.clone()
    tensors["sum_pi_squared"] = torch.exp(rollout)
    tensors["values"] = torch.zeros_like(rollout)


def _item(stage: StageSpec, start: int, stop: int) -> Item:
    return Item(Stage(name=stage.name, component=stage.component, run=stage.run, size=stop - start), 0, start, stop)
