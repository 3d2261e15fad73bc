"""The policies: an encoder, a head for actions and one for values, each with hidden layers of its own."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plugrl.errors import CheckpointError, ConfigError, UnsupportedCapability
from plugrl.models.base import BasePolicy
from plugrl.models.norm_stats import statistics_of
from plugrl_models_policy.config import CONFIG_FILE, CnnPolicyConfig, MlpPolicyConfig, PolicyConfig, resolve_config
from plugrl_models_policy.distributions import build_head
from plugrl_models_policy.encoders import ImageEncoder, StateEncoder, read_images, read_states, trunk

_CHOICE = "choice"


class ValueHead(nn.Module):
    """Hidden layers and one number."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        self.trunk = trunk(inputs, config)
        self.last = nn.Linear(config.hidden_sizes[-1], 1)
        nn.init.orthogonal_(self.last.weight, 1.0)
        nn.init.zeros_(self.last.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return values fp32 [B, 1]."""
        values: Tensor = self.last(self.trunk(features)).float()
        return values


class ControlPolicy(BasePolicy):
    """Acts on observations by one distribution for each action of a chunk and each dimension.

    ``forward_inputs`` hold the observation as tensors and ``choice`` [B, C, D]: what was drawn, before it was clipped
    or turned into the centre of a bin. Log-probabilities and entropies are fp32 [B, C, D], values [B, 1].
    """

    def __init__(self, config: PolicyConfig, inputs: int) -> None:
        super().__init__()
        self.config = config
        self.actor = trunk(inputs, config)
        self.head = build_head(config.hidden_sizes[-1], config)
        self.value_head = ValueHead(inputs, config) if config.add_value_head else None

    # ----------------------------------------------------------------- what a policy of either kind sees
    @abstractmethod
    def read(self, obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what :meth:`features` needs of an observation, as tensors [B, ...] on the policy's device."""

    @abstractmethod
    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what the hidden layers get, [B, inputs]."""

    # ----------------------------------------------------------------- acting
    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: str = "train",
        compute_values: bool = True,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return executable actions [B, C, D] and what :meth:`default_forward` needs to recompute them.

        ``mode="eval"`` takes the most likely action, and so does ``temperature`` 0. ``generator`` is on the host.
        """
        inputs = self.read(env_obs)
        features = self.features(inputs)
        hidden = self.actor(features)
        greedy = mode == "eval" or temperature == 0
        if greedy:
            choice, temperature = self.head.mode(hidden), 1.0
        else:
            choice = self.head.sample(hidden, temperature, top_k, top_p, generator)
        limits = (0, 1.0) if greedy else (top_k, top_p)
        logprobs, _ = self.head.log_probs(hidden, choice, temperature, *limits)
        values = self.value_head(features) if compute_values and self.value_head is not None else None
        result = {"prev_logprobs": logprobs, "prev_values": values, "forward_inputs": {**inputs, _CHOICE: choice}}
        return self.head.actions(choice).cpu(), result

    @torch.no_grad()
    def predict_values(self, obs: Mapping[str, Any]) -> Tensor:
        """Return values [B, 1]. Raises UnsupportedCapability without a value head."""
        return self._values(self.features(self.read(obs)))

    # ----------------------------------------------------------------- learning
    def default_forward(
        self,
        forward_inputs: Mapping[str, Any],
        *,
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return ``logprobs`` and ``entropy`` [B, C, D] and ``values`` [B, 1]; what was not asked for is left out."""
        features = self.features(forward_inputs)
        outputs: dict[str, Any] = {}
        if compute_logprobs or compute_entropy:
            logprobs, entropy = self.head.log_probs(
                self.actor(features), forward_inputs[_CHOICE], temperature, top_k, top_p
            )
            outputs |= {"logprobs": logprobs} if compute_logprobs else {}
            outputs |= {"entropy": entropy} if compute_entropy else {}
        if compute_values:
            outputs["values"] = self._values(features)
        return outputs

    def sft_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return ``losses`` [B] of imitating ``action`` [B, C, D] (or [B, D]); ``action_is_pad`` [B, C] is left out.

        Gaussian heads minimise the squared error of their mean, discrete ones the negative log-probability. Fields are
        those of an observation, or of a data set: ``observation.state``, ``observation.images.<name>``.
        """
        inputs = self.read(_observation(forward_inputs))
        actions = forward_inputs["action"]
        actions = actions.unsqueeze(1) if actions.dim() == 2 else actions
        chunk = (self.config.num_action_chunks, self.config.action_dim)
        if tuple(actions.shape[1:]) != chunk:
            raise ConfigError(
                f"model: a chunk has {chunk[0]} actions of {chunk[1]} numbers (num_action_chunks, action_dim), but the "
                f"demonstrations have {tuple(actions.shape[1:])}."
            )
        distances = self.head.distance(self.actor(self.features(inputs)), actions).mean(-1)
        padded, mask = forward_inputs.get("action_is_pad"), forward_inputs.get("action_mask")
        counts = torch.ones_like(distances) if padded is None else (~padded.bool()).to(distances.dtype)
        counts = counts if mask is None else counts * mask.to(distances.dtype)
        losses = (distances * counts).sum(-1) / counts.sum(-1).clamp(min=1)
        return {"losses": losses, "metrics": {"distance": losses.detach().mean()}}

    def _values(self, features: Tensor) -> Tensor:
        if self.value_head is None:
            raise UnsupportedCapability(
                f"model.add_value_head: {self.config.model_type} has no value head; set it to true."
            )
        values: Tensor = self.value_head(features)
        return values

    # ----------------------------------------------------------------- declarations
    def capabilities(self) -> frozenset[str]:
        """What the base class finds, values only with a head for them."""
        found = super().capabilities()
        return found if self.value_head is not None else found - {"values"}

    def wrap_units(self) -> tuple[str, ...]:
        """The hidden layers."""
        return ("HiddenLayer", "ConvLayer") if isinstance(self.config, CnnPolicyConfig) else ("HiddenLayer",)

    def critic_parameters(self) -> tuple[str, ...]:
        """The parameters of the value head."""
        return tuple(name for name, _ in self.named_parameters() if name.startswith("value_head."))

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Normalise states by these from now on, each [S]; they become part of the weights."""
        encoder = getattr(self, "states", None)
        if encoder is None:
            raise UnsupportedCapability(f"{self.config.model_type} looks at no states (model.state_dim is 0).")
        with torch.no_grad():
            encoder.state_mean.copy_(mean)
            encoder.state_std.copy_(std.clamp(min=1e-6))

    def save_config(self, directory: str | Path) -> None:
        """Write the shape of the model."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(json.dumps(self.config.shape(), indent=2) + "\n", encoding="utf-8")

    def _device(self) -> torch.device:
        return next(self.parameters()).device


class MlpPolicy(ControlPolicy):
    """Linear layers on the field ``states``."""

    def __init__(self, config: MlpPolicyConfig) -> None:
        super().__init__(config, config.state_dim)
        self.states = StateEncoder(config)

    def read(self, obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return ``states`` [B, S]."""
        return {"states": read_states(obs, self.config).to(self._device())}

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the normalised states."""
        features: Tensor = self.states(inputs["states"])
        return features


class CnnPolicy(ControlPolicy):
    """Convolutions on camera images; states, if there are any, join what comes out of them."""

    config: CnnPolicyConfig

    def __init__(self, config: CnnPolicyConfig) -> None:
        images = ImageEncoder(config)
        super().__init__(config, images.outputs + config.state_dim)
        self.images = images
        self.states = StateEncoder(config) if config.state_dim else None

    def read(self, obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return ``images`` uint8 [B, V, H, W, 3], and ``states`` [B, S]."""
        found = {"images": read_images(obs, self.config).to(self._device())}
        if self.states is not None:
            found["states"] = read_states(obs, self.config).to(self._device())
        return found

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what the convolutions make of the images, and the normalised states."""
        features: Tensor = self.images(inputs["images"])
        return features if self.states is None else torch.cat((features, self.states(inputs["states"])), -1)


def build_mlp_policy(cfg: Any, torch_dtype: torch.dtype | None) -> MlpPolicy:
    """Build the policy, with the weights of ``path`` or with random ones that depend on ``seed`` alone."""
    config = resolve_config(cfg, MlpPolicyConfig)
    return _built(MlpPolicy, config, torch_dtype)


def build_cnn_policy(cfg: Any, torch_dtype: torch.dtype | None) -> CnnPolicy:
    """As :func:`build_mlp_policy`."""
    config = resolve_config(cfg, CnnPolicyConfig)
    return _built(CnnPolicy, config, torch_dtype)


def _built(policy_class: Any, config: PolicyConfig, dtype: torch.dtype | None) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        policy = policy_class(config)
        _scale_states(policy, config)
    if config.path is not None and torch.get_default_device().type != "meta":
        _load(policy, Path(config.path).expanduser())
    return policy if dtype is None else policy.to(dtype)


def _scale_states(policy: ControlPolicy, config: PolicyConfig) -> None:
    """Normalise states by the statistics of the data that the policy is about to learn from, where there are some."""
    found = statistics_of(config.norm_stats, config.unnorm_key) if config.path is None else None
    scales = (found or {}).get("proprio")
    if scales is None or not config.state_dim:
        return
    mean, std = torch.tensor(scales["mean"]), torch.tensor(scales["std"])
    if len(mean) != config.state_dim:
        raise ConfigError(f"model.state_dim: {config.state_dim}, but model.norm_stats are those of {len(mean)} states.")
    policy.set_statistics(mean, std)


def _load(policy: ControlPolicy, folder: Path) -> None:
    """Read the weights; a value head may be new where the folder, as supervised training leaves it, has none."""
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    if not file.is_file():
        raise CheckpointError(f"model.path: {folder} has no model.safetensors.")
    state = load_file(file)
    own = policy.state_dict()
    new = {name: own[name] for name in own if name.startswith("value_head.") and name not in state}
    given = {name: value for name, value in state.items() if name in own or not name.startswith("value_head.")}
    policy.load_published({**given, **new}.items())


def _observation(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a data set's fields under the names of observations; images come as [B, 3, H, W] in 0 to 1 there."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "observation.state":
            found["states"] = value
        elif name.startswith("observation.images."):
            key = name.removeprefix("observation.images.")
            found[key if key.endswith("_images") else f"{key}_images"] = _as_pixels(value)
        else:
            found[name] = value
    return found


def _as_pixels(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    return images.movedim(-3, -1).mul(255).round().clamp(0, 255).to(torch.uint8)
