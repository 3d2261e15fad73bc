"""Feature-wise linear modulation: the instruction changes what the vision towers compute (Perez et al.,
https://arxiv.org/abs/1709.07871, as used by OpenVLA-OFT+)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

Modulation = tuple[torch.Tensor, torch.Tensor]
"""Scale less one and shift of the channels of a block, [B, 1, dim] each."""


class FilmLayer(nn.Module):
    """Scale and shift of one block. Both are 0 at first, which changes nothing."""

    def __init__(self, hidden_dim: int, vision_dim: int) -> None:
        super().__init__()
        self.scale = nn.Linear(hidden_dim, vision_dim)
        self.shift = nn.Linear(hidden_dim, vision_dim)

    def forward(self, language: torch.Tensor) -> Modulation:
        """Return what a mean language embedding [B, hidden_dim] makes of the block's channels."""
        return self.scale(language)[:, None], self.shift(language)[:, None]


class Film(nn.Module):
    """The layers of all towers: ``towers`` maps the name of each to its width and its number of blocks."""

    def __init__(self, hidden_dim: int, towers: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self._names = tuple(towers)
        for name, (dim, depth) in towers.items():
            self.add_module(name, nn.ModuleList(FilmLayer(hidden_dim, dim) for _ in range(depth)))
        self.initialise()

    def forward(self, language: torch.Tensor, cameras: int = 1) -> dict[str, list[Modulation]]:
        """Return the modulations of each tower's blocks for embeddings [B, hidden_dim], a row for each image."""
        language = language.repeat_interleave(cameras, dim=0)
        return {name: [layer(language) for layer in self.get_submodule(name).children()] for name in self._names}

    @torch.no_grad()
    def initialise(self) -> None:
        """Let the layers change nothing."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
