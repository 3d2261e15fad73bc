"""From the rows of a data set of demonstrations to what a policy for environments learns from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plugrl.config.schema import EmbodiedModelConfig, RunConfig
from plugrl.data.lerobot import FrameSamples
from plugrl.data.lerobot.statistics import STATISTICS_FILE, norm_stats
from plugrl.data.observations import ACTION, STATE, observation
from plugrl.data.registry import load_source
from plugrl.data.samples import Samples, SampleSplits
from plugrl.errors import ConfigError, UnsupportedCapability

if TYPE_CHECKING:
    from plugrl.models.base import BasePolicy

_KEY = "data.source_options"


def acts_in_environments(config: RunConfig) -> bool:
    """Whether the policy learns from observations as environments give them: its section has the keys of those that do.

    Other policies for robots get the features of the data set as they are, normalised by processors.
    """
    return isinstance(config.model, EmbodiedModelConfig)


class DemonstrationInputs:
    """Turns a batch of frames into what the policy's ``sft_forward`` gets; stands in the place of processors.

    The policy itself scales states and actions, by ``model.norm_stats``, so nothing is normalised before it.
    """

    def __init__(self, policy: BasePolicy, samples: Samples) -> None:
        if "sft" not in policy.capabilities():
            raise UnsupportedCapability(f"model.model_type: {type(policy).__name__} learns from no demonstrations.")
        self._policy = policy
        self._tasks = getattr(samples, "tasks", {})

    def before(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the policy's inputs of frames [B, ...] with ``action`` [B, C, D] and ``action_is_pad`` [B, C]."""
        actions = batch[ACTION].float()
        actions = actions if actions.dim() == 3 else actions.unsqueeze(1)
        padded = batch.get(f"{ACTION}_is_pad")
        mask = torch.ones(actions.shape[:2], dtype=torch.bool) if padded is None else ~padded
        with torch.no_grad():
            inputs = self._policy.sft_inputs(observation(batch, self._tasks), actions)
        return {**inputs, "action_mask": mask}

    def restored(self, folder: Path) -> DemonstrationInputs:
        """Return the same: what belongs to the policy lies in its own folder."""
        return self

    def save(self, folder: Path) -> None:
        """Write nothing: the policy has its statistics itself."""


def demonstration_samples(config: RunConfig) -> SampleSplits:
    """Load the demonstrations that ``data`` names, with as many actions in a sample as the policy gives at once.

    Raises ConfigError for a data set that holds none, or whose actions do not fit the policy.
    """
    found = load_source(with_chunks(config).data)
    if not isinstance(found, SampleSplits):
        raise ConfigError(
            f"data.source: {config.data.source} has texts; {config.model.model_type} learns from demonstrations "
            "(data.source=lerobot)."
        )
    action = found.features.get(ACTION, {}).get("shape")
    wanted = getattr(config.model, "action_dim", None)
    if action is None or (wanted is not None and list(action) != [wanted]):
        raise ConfigError(
            f"model.action_dim: {wanted}, but the actions of the demonstrations have the shape {action} ({_KEY}.root)."
        )
    return found


def with_chunks(config: RunConfig) -> RunConfig:
    """Return the configuration with as many actions in each sample as the policy gives, unless it says otherwise."""
    data, chunk = config.data, getattr(config.model, "num_action_chunks", 1)
    given = dict(data.source_options)
    if data.source != "lerobot" or "chunk_size" in given or ACTION in given.get("delta_timestamps", {}):
        return config
    options = {**given, "chunk_size": chunk}
    return config.model_copy(update={"data": data.model_copy(update={"source_options": options})})


def with_statistics(config: RunConfig, splits: SampleSplits) -> RunConfig:
    """Return the configuration whose policy scales by the training episodes, where ``model.norm_stats`` gives nothing.

    A policy that is continued (``model.path``) keeps the statistics of its weights. The name of the statistics is that
    of the data set, or ``model.unnorm_key``.
    """
    model = config.model
    if not hasattr(model, "norm_stats") or model.norm_stats is not None or model.path is not None:
        return config
    samples = splits.train
    if not isinstance(samples, FrameSamples):
        return config
    key = getattr(model, "unnorm_key", None) or dataset_name(samples.info.root)
    actions, states = samples.column(ACTION), samples.column(STATE)
    assert actions is not None
    found = norm_stats(
        actions.numpy(),
        None if states is None else states.numpy(),
        samples.num_episodes,
        action_mask(samples.info.root, key),
    )
    return config.model_copy(update={"model": model.model_copy(update={"norm_stats": {key: found}, "unnorm_key": key})})


def dataset_name(root: Path) -> str:
    """Return the name under which a data set gives its statistics: the one in its file, else that of its folder."""
    known = _given_statistics(root)
    return next(iter(known)) if len(known) == 1 else root.name


def action_mask(root: Path, key: str) -> list[bool] | None:
    """Return which numbers of an action are scaled, as the data set's own statistics say; None: all."""
    entry = _given_statistics(root).get(key, {}).get("action", {})
    return entry.get("mask") if isinstance(entry, dict) else None


def _given_statistics(root: Path) -> dict[str, Any]:
    path = root / STATISTICS_FILE
    if not path.is_file():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}
