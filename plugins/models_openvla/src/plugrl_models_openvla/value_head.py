"""The value head: from a hidden state to the value of an observation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from plugrl.errors import ConfigError, one_of

_ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], Literal["relu", "tanh"]]] = {
    # torch knows no gain of GELU; that of ReLU serves, whose variance it has but for the small values.
    "gelu": (nn.GELU, "relu"),
    "relu": (nn.ReLU, "relu"),
    "tanh": (nn.Tanh, "tanh"),
}


class ValueHead(nn.Module):
    """A multi-layer perceptron, ``mlp``, of three linear layers or as many as ``hidden_sizes`` makes.

    Args:
        input_dim: width of the hidden state.
        hidden_sizes: widths between the layers.
        output_dim: number of values.
        activation: gelu, relu or tanh, in any case.
        bias_last: whether the last layer has a bias.

    Raises:
        ConfigError: another activation.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_sizes: Sequence[int] = (512, 128),
        output_dim: int = 1,
        activation: str = "gelu",
        bias_last: bool = False,
    ) -> None:
        super().__init__()
        if activation.lower() not in _ACTIVATIONS:
            raise ConfigError(f"model.value_head_activation: {activation!r} is none of {one_of(_ACTIVATIONS)}.")
        make, self._gain = _ACTIVATIONS[activation.lower()]
        layers: list[nn.Module] = []
        for size_in, size_out in zip((input_dim, *hidden_sizes[:-1]), hidden_sizes, strict=True):
            layers += [nn.Linear(size_in, size_out), make()]
        layers.append(nn.Linear(hidden_sizes[-1] if hidden_sizes else input_dim, output_dim, bias=bias_last))
        self.mlp = nn.Sequential(*layers)
        self.initialise()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the values [..., output_dim] of states [..., input_dim]."""
        return self.mlp(states.to(next(self.mlp.parameters()).dtype))

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw random weights: Kaiming for the hidden layers, small ones for the last."""
        *hidden, last = (layer for layer in self.mlp if isinstance(layer, nn.Linear))
        for layer in hidden:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity=self._gain)
            nn.init.zeros_(layer.bias)
        nn.init.normal_(last.weight, std=0.02)
        if last.bias is not None:
            nn.init.zeros_(last.bias)
