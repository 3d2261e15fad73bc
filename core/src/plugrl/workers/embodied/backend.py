"""A policy that acts, as a rollout backend: its weights come as those of any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from plugrl.errors import ConfigError, PlugRLError, UnsupportedCapability, WeightSyncError
from plugrl.models import get_model
from plugrl.models.base import BasePolicy
from plugrl.models.moving import move_module
from plugrl.platforms import get_platform
from plugrl.rollouts.base import Completion, RolloutBackend, SamplingParams


class PolicyBackend(RolloutBackend):
    """Holds a plain copy of the policy on this worker's device. It is never trained."""

    policy: BasePolicy

    def __init__(self, model_config: Any, rollout_config: Any) -> None:
        super().__init__(model_config, rollout_config)
        self._version = 0
        self._refusal = ""

    def initialize(self) -> None:
        """Build the policy. Raises ConfigError for one that does not act."""
        policy = get_model(self.model_config)
        if "actions" not in policy.capabilities():
            name = getattr(self.model_config, "model_type", "the model")
            raise ConfigError(
                f"model.model_type: {name} ({type(policy).__name__}) predicts no actions: it has no "
                "predict_action_batch of its own."
            )
        platform = get_platform()
        name = platform.device_name
        self._device = torch.device(name) if name == "cpu" else torch.device(name, platform.current_device())
        move_module(policy, self._device)
        self.policy = policy.eval().requires_grad_(False)

    def acting(self) -> BasePolicy:
        """Return the policy. Raises WeightSyncError while its weights are not whole."""
        if self._refusal:
            raise WeightSyncError(f"The policy cannot act: {self._refusal}.")
        return self.policy

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """Raise UnsupportedCapability: this policy acts and writes no texts."""
        raise UnsupportedCapability("This policy acts in environments; it answers no prompts.")

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights. Raises WeightSyncError; until a later call succeeds the policy then refuses to act."""
        self._refusal = f"loading the weights of version {version} failed half-way"
        try:
            self.policy.load_published(tensors, strict=True)
        except PlugRLError as error:
            raise WeightSyncError(f"Weights of version {version} did not load: {error}") from error
        self._version, self._refusal = version, ""

    def adopt_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Compute with these tensors where they lie on the policy's device in its type, else copy them."""
        try:
            self.policy.adopt_published(tensors)
        except PlugRLError as error:
            raise WeightSyncError(f"Weights of version {version} did not load: {error}") from error
        self._version, self._refusal = version, ""

    @property
    def merges_adapters(self) -> bool:
        """Whether the policy knows how."""
        return type(self.policy).merge_published is not BasePolicy.merge_published

    def merge_adapter(
        self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any]
    ) -> Mapping[str, torch.Tensor]:
        """Add an adapter to the weights of its layers."""
        with torch.no_grad():
            return dict(self.policy.merge_published(tensors, adapter, self._device))

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights in use under published names."""
        for name, tensor in self.policy.state_dict().items():
            published = self.policy.published_name(name)
            if published is not None:
                yield published, tensor

    @property
    def weight_version(self) -> int:
        """Version of the weights in use."""
        return self._version

    def sleep(self) -> None:
        """Move the weights to the host."""
        move_module(self.policy, torch.device("cpu"))
        get_platform().empty_cache()

    def wake(self) -> None:
        """Bring the weights back to the device."""
        move_module(self.policy, self._device)

    def close(self) -> None:
        """Refuse to act from now on."""
        self._refusal = "it was closed"
