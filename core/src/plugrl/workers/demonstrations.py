"""From the rows of a data set of demonstrations to what a policy for environments learns from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plugrl.config.schema import EmbodiedModelConfig, ModelConfig, RunConfig
from plugrl.data.lerobot import FrameSamples
from plugrl.data.lerobot.statistics import STATISTICS_FILE, norm_stats
from plugrl.data.observations import ACTION, STATE, observation
from plugrl.data.registry import load_source
from plugrl.data.samples import Samples, SampleSplits
from plugrl.errors import ConfigError, UnsupportedCapability
from plugrl.models.norm_stats import difference, read_norm_stats, statistics_of

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


def with_statistics_in_full(values: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Return the values of a configuration in which the statistics that the policy scales by stand themselves.

    So a checkpoint says what it learnt with, whatever becomes of a file that was named or of the demonstrations.
    """
    given = read_norm_stats(getattr(model, "norm_stats", None))
    if not given:
        return dict(values)
    key = getattr(model, "unnorm_key", None)
    return {**values, "model": {**values["model"], "norm_stats": given, "unnorm_key": key}}


def check_statistics(model: ModelConfig, checkpoint: Path, folder: str, train_config: str) -> None:
    """Compare the statistics that a policy scales by with those that a checkpoint learnt with.

    ``checkpoint / folder / train_config`` is the configuration that it was written with; one that names no statistics
    is not compared. Raises ConfigError naming the first difference, and how to go on with those of the checkpoint.
    """
    path = checkpoint / folder / train_config
    if not hasattr(model, "norm_stats") or not path.is_file():
        return
    stored = json.loads(path.read_text(encoding="utf-8")).get("model", {})
    if not isinstance(stored.get("norm_stats"), dict):
        return
    before = statistics_of(stored["norm_stats"], stored.get("unnorm_key"))
    now = statistics_of(model.norm_stats, getattr(model, "unnorm_key", None))
    changed = difference(before or {}, now or {})
    if changed:
        raise ConfigError(
            f"model.norm_stats: the statistics that the policy would scale by are not those that {checkpoint} learnt "
            f"with: {changed}. They come from the demonstrations where they are not given. To go on as the checkpoint "
            f"learnt, give model.norm_stats={checkpoint / folder / STATISTICS_FILE} "
            f"model.unnorm_key={stored.get('unnorm_key') or next(iter(stored['norm_stats']))}; to learn anew with "
            f"the others, take its weights as model.path and another trainer.default_local_dir."
        )


def save_statistics(values: Mapping[str, Any], folder: Path) -> None:
    """Write the statistics of a configuration beside the weights, where the policy has not done so itself."""
    given = values.get("model", {}).get("norm_stats")
    if isinstance(given, dict) and not (folder / STATISTICS_FILE).exists():
        (folder / STATISTICS_FILE).write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")


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
