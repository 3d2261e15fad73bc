"""The vision towers: DINOv2 and SigLIP transformers with the parameter names of published checkpoints.

OpenVLA reads the patches after the last block but one, before any final norm (Karamcheti et al., "Prismatic VLMs",
https://arxiv.org/abs/2402.07865). The last block, the final norm and SigLIP's pooling head stand in checkpoints all
the same: they are here as parameters that are neither computed with nor trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from plugrl.errors import DataError
from plugrl_models_openvla.film import Modulation
from plugrl_models_openvla.towers import TowerConfig

_EPS = 1e-6


class LayerScale(nn.Module):
    """Scales channels by a learned vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(dim))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [..., dim] of the same shape."""
        return hidden * self.scale_factor


class Attention(nn.Module):
    """Self-attention of all tokens with all."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [B, T, dim] for [B, T, dim]."""
        rows, length, dim = hidden.shape
        qkv = self.qkv(hidden).view(rows, length, 3, self.num_heads, dim // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(rows, length, dim))


class Mlp(nn.Module):
    """Two linear layers with the exact GELU between them."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [..., dim] of the same shape."""
        return self.fc2(F.gelu(self.fc1(hidden)))


class VisionBlock(nn.Module):
    """A transformer block that normalises first."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.norm1 = nn.LayerNorm(dim, eps=_EPS)
        self.attn = Attention(dim, config.num_heads)
        self.ls1 = LayerScale(dim) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=_EPS)
        self.mlp = Mlp(dim, config.mlp_dim)
        self.ls2 = LayerScale(dim) if config.layer_scale else nn.Identity()

    def forward(self, hidden: torch.Tensor, modulation: Modulation | None = None) -> torch.Tensor:
        """Return [B, T, dim] for [B, T, dim]."""
        hidden = hidden + self.ls1(self.attn(self.norm1(hidden)))
        if modulation is not None:
            hidden = hidden * (1 + modulation[0]) + modulation[1]
        return hidden + self.ls2(self.mlp(self.norm2(hidden)))


class PatchEmbed(nn.Module):
    """Cuts images into patches and projects each."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.embed_dim, config.patch_size, stride=config.patch_size)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return [B, num_patches, dim] for [B, 3, S, S]."""
        # A convolution whose windows do not overlap is a matrix product, which is several times faster on small images.
        weight, size = self.proj.weight, self.proj.kernel_size[0]
        count = pixels.shape[-1] // size
        cut = pixels[..., : count * size, : count * size].to(weight.dtype)
        grid = cut.reshape(-1, 3, count, size, count, size).permute(0, 2, 4, 1, 3, 5)
        patches = grid.reshape(len(cut), count**2, -1)
        return F.linear(patches, weight.flatten(1), self.proj.bias)


class AttentionPool(nn.Module):
    """SigLIP's pooling head, for its parameters: OpenVLA does not compute with it."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.latent = nn.Parameter(torch.zeros(1, 1, dim))
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self.mlp = Mlp(dim, config.mlp_dim)


class VisionTower(nn.Module):
    """One vision transformer; see :class:`~plugrl_models_openvla.towers.TowerConfig` for its sizes."""

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self._num_prefix = config.num_prefix
        self._image_size = config.image_size
        dim = config.embed_dim
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if config.class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.reg_tokens, dim)) if config.reg_tokens else None
        self.pos_embed = nn.Parameter(torch.zeros(1, config.num_patches, dim))
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self.attn_pool = AttentionPool(config) if config.attention_pool else None

    def forward(self, pixels: torch.Tensor, modulations: Sequence[Modulation] | None = None) -> torch.Tensor:
        """Return the features [B, num_patches, dim] of normalised images [B, 3, S, S].

        ``modulations``: what an instruction makes of the channels of each block.
        """
        if pixels.shape[-2:] != (self._image_size, self._image_size):
            raise DataError(
                f"this vision tower takes images of {self._image_size} pixels a side, not {list(pixels.shape[-2:])}."
            )
        hidden = self.patch_embed(pixels) + self.pos_embed
        prefix = [token.expand(len(hidden), -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        hidden = torch.cat([*prefix, hidden], dim=1) if prefix else hidden
        for number, block in enumerate(self.blocks[:-1]):
            modulation = None if modulations is None else modulations[number]
            if self.gradient_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(block, hidden, modulation, use_reentrant=False)
            else:
                hidden = block(hidden, modulation)
        return hidden[:, self._num_prefix :]

    def unused(self) -> Sequence[nn.Module]:
        """The parts that stand in checkpoints alone."""
        return [self.blocks[-1], self.norm, *([] if self.attn_pool is None else [self.attn_pool])]

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw random weights: positions as in "Attention Is All You Need", in two dimensions, so that a tower that is
        trained from nothing knows from the start which patches are neighbours."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=0.02)
        self.pos_embed.copy_(_grid_positions(math.isqrt(self.pos_embed.shape[1]), self.pos_embed.shape[2]))


def _grid_positions(side: int, dim: int) -> torch.Tensor:
    """Return sines and cosines of rows and columns [1, side * side, dim]."""
    count = max(dim // 4, 1)
    rates = torch.pi / torch.logspace(0, math.log10(max(side, 2)), count)
    angles = torch.arange(side)[:, None] * rates
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = waves[:, None].expand(side, side, -1), waves[None].expand(side, side, -1)
    found = torch.cat([rows, columns], dim=2).reshape(1, side * side, -1)[..., :dim]
    return F.pad(found, (0, dim - found.shape[-1]))


class VisionBackbone(nn.Module):
    """One tower, or two whose features are joined; for one camera or several."""

    def __init__(self, towers: Sequence[TowerConfig]) -> None:
        super().__init__()
        self.featurizer = VisionTower(towers[0])
        self.fused_featurizer = VisionTower(towers[1]) if len(towers) > 1 else None
        self.embed_dim = sum(tower.embed_dim for tower in towers)

    @property
    def towers(self) -> tuple[VisionTower, ...]:
        """The towers in the order of their channels."""
        return (self.featurizer,) if self.fused_featurizer is None else (self.featurizer, self.fused_featurizer)

    def forward(
        self, pixel_values: torch.Tensor, modulations: Mapping[str, Sequence[Modulation]] | None = None
    ) -> torch.Tensor:
        """Return [B, cameras * num_patches, embed_dim], camera after camera.

        ``pixel_values``: [B, cameras * 3 * towers, S, S], normalised for each tower. ``modulations``: those of each
        tower, with a row for each image. Raises DataError otherwise.
        """
        towers = self.towers
        channels = 3 * len(towers)
        if pixel_values.dim() != 4 or pixel_values.shape[1] % channels or not pixel_values.shape[1]:
            raise DataError(
                f"pixel values must be [B, {channels} for each camera, S, S], not {list(pixel_values.shape)}."
            )
        images = pixel_values.reshape(-1, channels, *pixel_values.shape[-2:])
        names = ("featurizer", "fused_featurizer")
        features = [
            tower(part, None if modulations is None else modulations[name])
            for name, tower, part in zip(names, towers, images.split(3, dim=1), strict=False)
        ]
        joined = features[0] if len(features) == 1 else torch.cat(features, dim=2)
        return joined.reshape(len(pixel_values), -1, joined.shape[-1])
