"""The pre- and postprocessor of a policy in training: made from the data once, the checkpoint's ever after."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plugrl.data.samples import SampleSplits
from plugrl.processors import POSTPROCESSOR, PREPROCESSOR, Pipeline
from plugrl.processors.steps import Normalizer, Unnormalizer, norm_map

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processing:
    """``before`` prepares a batch for the policy; ``after`` brings its actions back. Both may have no steps."""

    before: Pipeline
    after: Pipeline

    @staticmethod
    def fresh(splits: SampleSplits, normalization: Mapping[str, str]) -> Processing:
        """Return the processors of a new run: normalisation by the statistics of the data, and its inverse.

        Raises ConfigError when a statistic is asked for that the data set does not give.
        """
        if not splits.features:
            return Processing(Pipeline(PREPROCESSOR), Pipeline(POSTPROCESSOR))
        modes = norm_map(normalization, list(splits.features))
        actions = {name: feature for name, feature in splits.features.items() if feature["type"] == "ACTION"}
        before = Normalizer(splits.features, modes, splits.statistics)
        after = Unnormalizer(actions, modes, splits.statistics)
        return Processing(
            Pipeline(PREPROCESSOR, [("normalizer_processor", before)]),
            Pipeline(POSTPROCESSOR, [("unnormalizer_processor", after)]),
        )

    def restored(self, folder: Path) -> Processing:
        """Return the processors of a checkpoint: the policy has learnt with their statistics, whatever the data's are.

        Raises CheckpointError when they cannot be read.
        """
        if not Pipeline.exists(folder, PREPROCESSOR):
            if self.before.steps:
                logger.warning("%s has no %s.json: the statistics of the data set are used.", folder, PREPROCESSOR)
            return self
        before = Pipeline.load(folder, PREPROCESSOR)
        found = Pipeline.exists(folder, POSTPROCESSOR)
        after = Pipeline.load(folder, POSTPROCESSOR) if found else Pipeline(POSTPROCESSOR)
        if self.before.steps and _differ(before.state(), self.before.state()):
            logger.warning("The statistics of the data set differ from those of the checkpoint, which are used.")
        return Processing(before, after)

    def save(self, folder: Path) -> None:
        """Write both beside the weights; nothing where there are no steps."""
        for pipeline in (self.before, self.after):
            if pipeline.steps:
                pipeline.save(folder)


def _differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() != other.keys() or any(not one[name].equal(other[name]) for name in one)
