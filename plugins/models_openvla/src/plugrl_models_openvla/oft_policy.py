"""The policies ``openvla_oft``: a chunk of actions in one pass, as tokens or as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plugrl.errors import DataError, UnsupportedCapability
from plugrl.models.factory import resolve_dtype
from plugrl_models_hf.adapter import Adapter
from plugrl_models_openvla.building import Parts
from plugrl_models_openvla.config import resolve_config
from plugrl_models_openvla.model import without_padding
from plugrl_models_openvla.norm_statistics import NormStatistics
from plugrl_models_openvla.oft_building import HEADS, build_oft
from plugrl_models_openvla.oft_config import OpenVLAOFTConfig
from plugrl_models_openvla.oft_model import OFTModel
from plugrl_models_openvla.policy import OpenVLAPolicy, given
from plugrl_models_openvla.sampling import Sampling, draw, logprob_of

CAMERAS = ("main_images", "wrist_images", "extra_view_images")
"""Fields of observations that hold images, in the order in which the model takes them."""


class OpenVLAOFTPolicy(OpenVLAPolicy):
    """Tokens of all slots are drawn at once, each from its own distribution.

    ``forward_inputs`` are those of :class:`~plugrl_models_openvla.policy.OpenVLAPolicy`; ``pixels`` hold all cameras,
    and ``proprio`` fp32 [B, P], the normalised state of the robot, stands beside them where the model takes it.
    Values are [B, 1], or [B, C] with ``value_type: action_level``.
    """

    model: OFTModel

    def __init__(
        self, model: OFTModel, parts: Parts, adapter: Adapter | None = None, proprio: NormStatistics | None = None
    ) -> None:
        super().__init__(model, parts, adapter)
        self.proprio = proprio
        self._num_cameras = model.num_images

    def wrap_units(self) -> tuple[str, ...]:
        """Those of OpenVLA, and each head."""
        heads = {type(getattr(self.model, name)).__name__ for name in HEADS if hasattr(self.model, name)}
        return self._run_units(*{*super().wrap_units(), *heads})

    def observe(self, env_obs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, ``attention_mask``, ``pixels`` of all cameras and ``proprio`` where it is taken."""
        inputs = super().observe(env_obs)
        device = inputs["pixels"].device
        views = [self.parts.images.prepare(view).to(device) for view in self._further_views(env_obs)]
        for view in views:
            if view.shape != inputs["pixels"].shape:
                raise DataError(f"there are {len(view)} images of a camera for {len(inputs['pixels'])} main_images.")
        inputs["pixels"] = torch.cat([inputs["pixels"], *views], dim=1)
        if self.proprio is not None:
            inputs["proprio"] = self._normalised_states(env_obs, len(inputs["pixels"])).to(device)
        return inputs

    @torch.no_grad()
    def predict_values(self, obs: Mapping[str, Any]) -> torch.Tensor:
        """Return the values fp32 of observations, [B, 1] or [B, C]. Raises UnsupportedCapability without a head."""
        self._needs_values()
        return self._values(self._action_states(self.observe(obs))[:, 0])

    def _act(
        self, inputs: Mapping[str, torch.Tensor], sampling: Sampling, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        states = self._action_states(inputs)
        every = self._distribution(states, sampling)
        ids = draw(every, self.parts.tokens, greedy=sampling.is_greedy, generator=generator)
        shape = (-1, self.num_action_chunks, self.action_dim)
        log_probs = logprob_of(every, ids, self.parts.tokens).view(shape)
        values = self._values(states[:, 0]) if self.has_values else log_probs.new_zeros(len(ids), 1)
        return ids.view(shape), log_probs, values

    def _action_states(self, forward_inputs: Mapping[str, Any]) -> torch.Tensor:
        ids, mask = without_padding(forward_inputs["input_ids"], forward_inputs["attention_mask"])
        pixel_values = self.parts.images.normalise(forward_inputs["pixels"])
        return self.model.slot_states(ids, mask, pixel_values, forward_inputs.get("proprio"))

    def _further_views(self, env_obs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the images [B, H, W, 3] of every camera but the main one, as many as the model takes."""
        wanted = self._num_cameras - 1
        views: list[torch.Tensor] = []
        for key in CAMERAS[1:]:
            if len(views) < wanted and env_obs.get(key) is not None:
                images = torch.as_tensor(env_obs[key])
                views += [images] if images.dim() == 4 else images.unbind(1)
        if len(views) < wanted:
            raise DataError(
                f"model.num_images_in_input: {wanted + 1}, but the observation has {1 + len(views)} cameras in "
                f"{', '.join(CAMERAS)}."
            )
        return views[:wanted]

    def _normalised_states(self, env_obs: Mapping[str, Any], rows: int) -> torch.Tensor:
        assert self.proprio is not None
        states = torch.as_tensor(given(env_obs, "states"))
        if states.shape != (rows, self.proprio.size):
            raise DataError(
                f"states must be [{rows}, {self.proprio.size}], as the statistics of proprioception say, not "
                f"{list(states.shape)}."
            )
        return self.proprio.normalise(states)


class OpenVLAOFTRegressionPolicy(OpenVLAOFTPolicy):
    """Actions are numbers of the L1 head: it is cloned from demonstrations and evaluated, and has no probabilities.

    ``forward_inputs`` hold no tokens; in supervised training ``normalised_actions`` fp32 [B, C, D] is what they aim at.
    """

    def capabilities(self) -> frozenset[str]:
        """Actions and supervised loss; values with a head."""
        return frozenset({"actions", "sft"} | ({"values"} if self.has_values else set()))

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Mapping[str, Any], mode: str = "train", compute_values: bool = True, **sampling: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return ``(actions, result)`` as :class:`OpenVLAPolicy` does; ``prev_logprobs`` is None, nothing is drawn."""
        inputs = self.observe(env_obs)
        states = self._action_states(inputs)
        actions = self.parts.transform(self.parts.statistics.unnormalise(self.model.action_head(states)))
        values = states.new_zeros(len(states), 1, dtype=torch.float32)
        if compute_values and self.has_values:
            values = self._values(states[:, 0])
        return actions, {"prev_logprobs": None, "prev_values": values, "forward_inputs": inputs}

    def default_forward(
        self,
        forward_inputs: Mapping[str, Any],
        *,
        compute_logprobs: bool = False,
        compute_entropy: bool = False,
        compute_values: bool = False,
        **_: Any,
    ) -> dict[str, torch.Tensor]:
        """Return ``actions`` normalised fp32 [B, C, D] and, when asked, ``values``.

        Raises UnsupportedCapability for log-probabilities and entropies.
        """
        if compute_logprobs or compute_entropy:
            raise UnsupportedCapability(
                "model.action_head: an l1 head gives numbers without probabilities, so it cannot be trained by "
                "reinforcement; action_head=discrete can."
            )
        if compute_values:
            self._needs_values()
        states = self._action_states(forward_inputs)
        found = {"actions": self.model.action_head(states).float()}
        if compute_values:
            found["values"] = self._values(states[:, 0])
        return found

    def sft_inputs(self, env_obs: Mapping[str, Any], actions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what :meth:`sft_forward` needs for observations and actions [B, C, D] in the robot's units."""
        self._check_actions(actions)
        inputs = self.observe(env_obs)
        targets = self.parts.statistics.normalise(actions).to(inputs["pixels"].device)
        return {**inputs, "normalised_actions": targets}

    def sft_forward(self, forward_inputs: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Return ``losses`` fp32 [B], each the mean distance of a row's actions from those that were shown, in [-1, 1].

        ``action_mask`` [B, C] in the inputs leaves out steps of a chunk that are padding.
        """
        targets = forward_inputs["normalised_actions"]
        found = self.model.action_head(self._action_states(forward_inputs)).float()
        distances = (found - targets.float()).abs().mean(dim=-1)
        mask = forward_inputs.get("action_mask")
        weights = torch.ones_like(distances) if mask is None else mask.to(distances.dtype)
        rows = (distances * weights).sum(1) / weights.sum(1).clamp(min=1)
        with torch.no_grad():
            total = (distances * weights).sum() / weights.sum().clamp(min=1)
        return {"losses": rows, "metrics": {"action_l1": total}}


def build_openvla_oft(cfg: Any, torch_dtype: torch.dtype | None = None) -> OpenVLAOFTPolicy:
    """Build the policy that ``model:`` describes, on the CPU. Raises ConfigError or CheckpointError with the key."""
    config = resolve_config(cfg, OpenVLAOFTConfig)
    model, parts, adapter, proprio = build_oft(config, resolve_dtype(torch_dtype or config.precision))
    kind = OpenVLAOFTRegressionPolicy if config.action_head == "l1" else OpenVLAOFTPolicy
    return kind(model, parts, adapter, proprio)
