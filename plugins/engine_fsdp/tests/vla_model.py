"""A policy of the shape of a flow-matching VLA: image encoder, expert, tagged projections, own RMSNorm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from plugrl.models.base import BasePolicy

WIDTH, ACTION, HORIZON = 16, 4, 3
TAGGED = ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out")


class RMSNorm(nn.Module):
    """Normalises in fp32 whatever comes in, and gives back what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight).to(hidden.dtype)


class Mlp(nn.Module):
    """Two layers; gives back the dtype that came in, so that an fp32 unit fits a bf16 stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(hidden)))


class EncoderLayer(nn.Module):
    """A layer of the image encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.mlp = nn.Linear(width, width), Mlp(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.mix(hidden.to(self.mix.weight.dtype))
        return hidden + self.mlp(hidden).to(hidden.dtype)


class Encoder(nn.Module):
    """The layers of the image encoder."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(depth))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Img(nn.Module):
    """Patches [B, P, 6] to tokens [B, P, WIDTH], with positions that are added in their own dtype."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.positions = nn.Parameter(torch.randn(2, width) * 0.02)
        self.encoder = Encoder(width, depth)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.stem(patches.to(self.stem.weight.dtype)) + self.positions)


class ExpertLayer(nn.Module):
    """A layer of the action expert."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_norm, self.attention, self.mlp = RMSNorm(width), nn.Linear(width, width), Mlp(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.input_norm(hidden))
        return hidden + self.mlp(hidden)


class Expert(nn.Module):
    """The layers of the action expert."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ExpertLayer(width) for _ in range(depth))
        self.norm = RMSNorm(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden)


class FlowPolicy(BasePolicy):
    """Predicts actions [B, HORIZON, ACTION] from patches, noisy actions and a time."""

    _no_split_modules = ["EncoderLayer", "ExpertLayer"]

    def __init__(self, depth: int = 2, seed: int = 0, embed_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed_dtype = embed_dtype
        torch.manual_seed(seed)
        self.img, self.expert = Img(WIDTH, depth), Expert(WIDTH, depth)
        self.action_in_proj, self.action_out_proj = nn.Linear(ACTION, WIDTH), nn.Linear(WIDTH, ACTION)
        self.time_mlp_in, self.time_mlp_out = nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH)
        for name in TAGGED:
            getattr(self, name)._fsdp_wrap_name = name
        self.query = nn.Parameter(torch.randn(WIDTH) * 0.02)
        self.register_buffer("frequencies", torch.linspace(0.1, 1.001, WIDTH))

    def default_forward(self, forward_inputs: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        patches, actions, time = (forward_inputs[name] for name in ("patches", "action", "time"))
        context = self.img(patches).float().mean(1, keepdim=True)
        hidden = self.action_in_proj(actions) + context
        step = self.time_mlp_out(F.silu(self.time_mlp_in(time[:, None])))
        hidden = hidden + step[:, None] + self.frequencies.float() + self.query.float()
        hidden = self.expert(hidden.to(self.embed_dtype))
        moved = self.action_out_proj(hidden)
        error = (moved.float() - forward_inputs["target"]).square().mean(-1)
        return {"logprobs": -error, "moved": moved}


def build(config: Mapping[str, Any], torch_dtype: torch.dtype | None = None) -> FlowPolicy:
    """Builder of the model type ``engine_test_flow``."""
    embed = torch.bfloat16 if config.get("embed_dtype") == "bf16" else torch.float32
    return FlowPolicy(embed_dtype=embed).to(torch_dtype or torch.float32)


def make_batch(count: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch of ``count`` samples."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "patches": torch.randn(count, 2, 6, generator=generator),
        "action": torch.randn(count, HORIZON, ACTION, generator=generator),
        "time": torch.rand(count, generator=generator),
        "target": torch.randn(count, HORIZON, ACTION, generator=generator),
    }


def flow_loss(outputs: Mapping[str, torch.Tensor], batch: Mapping[str, torch.Tensor], context: Any) -> Any:
    """The mean squared error of all samples of all ranks."""
    return -outputs["logprobs"].sum() * context.dp_size / context.global_batch_size / HORIZON, {}


PI05 = """
strategy: fsdp
sharding_strategy: no_shard
use_orig_params: true
mixed_precision:
  param_dtype: bf16
  reduce_dtype: fp32
  buffer_dtype: fp32
  cast_forward_inputs: false
  cast_root_forward_inputs: false
wrappers:
  projections:
    wrap_names: [action_in_proj, action_out_proj, time_mlp_in, time_mlp_out]
  norms:
    module_classes: [RMSNorm]
  vision_embedding:
    module_names: [img, img.stem]
  vision_mlps:
    module_names: ["img.encoder.layers.*.mlp"]
    wrap_mode: subtree
mixed_precision_policies:
  fp32:
    param_dtype: fp32
    reduce_dtype: fp32
    buffer_dtype: fp32
    cast_forward_inputs: true
  fp32_preserve_inputs:
    param_dtype: fp32
    reduce_dtype: fp32
    buffer_dtype: fp32
    cast_forward_inputs: false
mixed_precision_rules:
  projections: fp32
  norms: fp32_preserve_inputs
  vision_embedding: fp32_preserve_inputs
  vision_mlps: fp32
amp_autocast:
  enabled: false
"""
"""The example of the documentation that the per-unit precision follows, as it stands there."""
