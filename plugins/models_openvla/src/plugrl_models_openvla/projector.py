"""The projector: from the features of patches to embeddings of the language model."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


class Projector(nn.Module):
    """Two linear layers for one vision tower; three, the first of them four times as wide, for two towers."""

    def __init__(self, vision_dim: int, hidden_dim: int, *, fused: bool) -> None:
        super().__init__()
        first = 4 * vision_dim if fused else hidden_dim
        self.fc1 = nn.Linear(vision_dim, first)
        self.fc2 = nn.Linear(first, hidden_dim)
        self.fc3 = nn.Linear(hidden_dim, hidden_dim) if fused else None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return [B, N, hidden_dim] for [B, N, vision_dim]."""
        hidden = self.fc2(F.gelu(self.fc1(features)))
        return hidden if self.fc3 is None else self.fc3(F.gelu(hidden))

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw random weights."""
        for layer in (self.fc1, self.fc2, self.fc3):
            if layer is not None:
                nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
                nn.init.zeros_(layer.bias)
