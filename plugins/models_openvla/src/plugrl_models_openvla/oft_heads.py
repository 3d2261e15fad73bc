"""What OpenVLA-OFT has beside OpenVLA: the head that gives numbers instead of tokens, and proprioception as a token.

Parameter names are those of the published files.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

_BLOCKS = 2


class ResidualBlock(nn.Module):
    """``x + relu(linear(norm(x)))``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [..., dim] of the same shape."""
        return hidden + self.ffn(hidden)


class ResidualMLP(nn.Module):
    """Normalise, widen to ``hidden_dim``, two residual blocks, normalise, project."""

    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(input_dim)
        self.fc1 = nn.Linear(input_dim, hidden_dim)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(hidden_dim) for _ in range(_BLOCKS))
        self.layer_norm2 = nn.LayerNorm(hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, output_dim)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return [..., output_dim] for [..., input_dim]."""
        hidden = F.relu(self.fc1(self.layer_norm1(states)))
        for block in self.mlp_resnet_blocks:
            hidden = block(hidden)
        return self.fc2(self.layer_norm2(hidden))


class L1ActionHead(nn.Module):
    """Turns the states of the slots of each step, joined, into the normalised action of that step."""

    def __init__(self, hidden_dim: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.model = ResidualMLP(hidden_dim * action_dim, hidden_dim, action_dim)
        self.initialise()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return actions [B, C, D] for states [B, C * D, H]; they are bounded by nothing but the loss."""
        rows, slots, hidden = states.shape
        joined = states.reshape(rows, slots // self.action_dim, self.action_dim * hidden)
        return self.model(joined.to(self.model.fc1.weight.dtype))

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw random weights; actions are near 0 at first."""
        _initialise(self)
        nn.init.normal_(self.model.fc2.weight, std=0.02)


class ProprioProjector(nn.Module):
    """Two linear layers that make one token of the state of a robot."""

    def __init__(self, proprio_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(proprio_dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, hidden_dim)
        self.initialise()

    def forward(self, proprio: torch.Tensor) -> torch.Tensor:
        """Return [B, 1, hidden_dim] for normalised states [B, proprio_dim]."""
        return self.fc2(F.gelu(self.fc1(proprio.to(self.fc1.weight.dtype))))[:, None]

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw random weights."""
        _initialise(self)


def _initialise(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()
