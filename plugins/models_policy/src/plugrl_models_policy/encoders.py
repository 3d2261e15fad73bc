"""From observations to hidden values: normalised states, and convolutions on images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from plugrl.errors import UserError
from plugrl_models_policy.config import CnnPolicyConfig, PolicyConfig

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class HiddenLayer(nn.Module):
    """A linear layer and its activation."""

    def __init__(self, inputs: int, outputs: int, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.activation = ACTIVATIONS[activation]()
        nn.init.orthogonal_(self.linear.weight, 2**0.5)
        nn.init.zeros_(self.linear.bias)

    def forward(self, values: Tensor) -> Tensor:
        """Return hidden values [B, outputs]."""
        hidden: Tensor = self.activation(self.linear(values))
        return hidden


class ConvLayer(nn.Module):
    """A convolution that halves height and width, and its activation."""

    def __init__(self, inputs: int, outputs: int, activation: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, outputs, H / 2, W / 2], rounded up."""
        hidden: Tensor = self.activation(self.conv(images))
        return hidden


def trunk(inputs: int, config: PolicyConfig) -> nn.Sequential:
    """Return the hidden layers of one head."""
    widths = (inputs, *config.hidden_sizes)
    layers = [HiddenLayer(a, b, config.activation) for a, b in zip(widths, widths[1:], strict=False)]
    return nn.Sequential(*layers)


class StateEncoder(nn.Module):
    """States as they are, minus a mean and divided by a deviation, which are part of the weights and never trained."""

    state_mean: Tensor
    state_std: Tensor

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.clip = config.state_clip
        self.outputs = config.state_dim
        self.register_buffer("state_mean", torch.zeros(config.state_dim))
        self.register_buffer("state_std", torch.ones(config.state_dim))

    def forward(self, states: Tensor) -> Tensor:
        """Return normalised states [B, S]."""
        normalised = (states.to(self.state_mean.dtype) - self.state_mean) / self.state_std
        return normalised if self.clip is None else normalised.clamp(-self.clip, self.clip)


class ImageEncoder(nn.Module):
    """Convolutions on all images of an observation, whose channels are put together."""

    def __init__(self, config: CnnPolicyConfig) -> None:
        super().__init__()
        widths = (3 * config.num_images, *config.channels)
        self.layers = nn.Sequential(
            *(ConvLayer(a, b, config.activation) for a, b in zip(widths, widths[1:], strict=False))
        )
        height, width = config.image_shape
        for _ in config.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.outputs = config.channels[-1] * height * width

    def forward(self, images: Tensor) -> Tensor:
        """Turn uint8 images [B, V, H, W, 3] into hidden values [B, outputs]."""
        pixels = images.to(next(self.parameters()).dtype).div(127.5).sub(1.0)
        channels = pixels.permute(0, 1, 4, 2, 3).flatten(1, 2)
        hidden: Tensor = self.layers(channels).flatten(1)
        return hidden


def read_states(obs: Mapping[str, Any], config: PolicyConfig) -> Tensor:
    """Return the states [B, S] of an observation. Raises UserError when there are none, or another number of them."""
    states = _field(obs, "states", config)
    if states.dim() != 2 or states.shape[1] != config.state_dim:
        raise UserError(
            f"model.state_dim: {config.state_dim}, but the environment's states have the shape {tuple(states.shape)}."
        )
    return states.float()


def read_images(obs: Mapping[str, Any], config: CnnPolicyConfig) -> Tensor:
    """Return the images uint8 [B, V, H, W, 3] of an observation. Raises UserError when they have another shape."""
    found = []
    for key in config.image_keys:
        images = _field(obs, key, config)
        found.append(images if images.dim() == 5 else images.unsqueeze(1))
    wanted = (*config.image_shape, 3)
    for key, images in zip(config.image_keys, found, strict=True):
        if tuple(images.shape[2:]) != wanted:
            raise UserError(
                f"model.image_shape: {list(config.image_shape)}, but the environment's {key} have the shape "
                f"{tuple(images.shape)}; [N, {', '.join(map(str, wanted))}] is needed."
            )
    stacked = torch.cat(found, 1)
    if stacked.shape[1] != config.num_images:
        raise UserError(
            f"model.num_extra_views: {config.num_extra_views}, but the environment gives {stacked.shape[1]} images, "
            f"and {config.num_images} are expected."
        )
    return stacked


def _field(obs: Mapping[str, Any], key: str, config: PolicyConfig) -> Tensor:
    value = obs.get(key)
    if not isinstance(value, Tensor):
        given = ", ".join(sorted(name for name, item in obs.items() if item is not None)) or "nothing"
        raise UserError(
            f"model.model_type: {config.model_type} needs the field {key!r}; the environment gives {given}."
        )
    return value
