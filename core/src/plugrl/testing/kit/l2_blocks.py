"""L2, layers: the usual blocks forward and backward against the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from plugrl.testing.kit.checks import check
from plugrl.testing.kit.context import Context
from plugrl.testing.kit.golden import SHORT_MANTISSA, Loss, compare, noise, tokens

Block = tuple[str, nn.Module, Sequence[torch.Tensor], Loss | None]


def blocks() -> Iterator[Block]:
    """Yield name, module, inputs and call of what most models are made of; no convolution and no recurrence."""
    yield "linear", nn.Linear(48, 40), [noise(6, 48)], None
    yield "layer norm", nn.LayerNorm(48), [noise(6, 48)], None
    yield "RMS norm", nn.RMSNorm(48), [noise(6, 48)], None
    yield "embedding", nn.Embedding(61, 32), [tokens()], None
    yield "GELU and SiLU", nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.SiLU()), [noise(5, 24)], None
    yield "softmax", nn.Linear(24, 24), [noise(5, 24)], lambda layer, x: layer(x).softmax(-1)
    yield "cross-entropy", nn.Linear(32, 61), [noise(48, 32), tokens().flatten()], _cross_entropy
    yield "log-probabilities", nn.Linear(32, 61), [noise(48, 32), tokens().flatten()], _log_probabilities
    yield "indexing", nn.Linear(32, 16), [noise(12, 32)], lambda layer, x: layer(x)[1::2, ::3].cumsum(0).flip(0)
    yield "reductions", nn.Linear(32, 16), [noise(12, 32)], lambda layer, x: layer(x).pow(2).mean(0) + layer(x).std(0)
    yield "masking", nn.Linear(32, 16), [noise(12, 32)], _masked


def _cross_entropy(layer: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(layer(x), labels, reduction="none")


def _log_probabilities(layer: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return layer(x).log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)


def _masked(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mask = torch.arange(16, device=x.device) % 3 == 0
    hidden: torch.Tensor = layer(x)
    return torch.where(mask, hidden, hidden.detach()).masked_fill(~mask, 0.5)


def run_blocks(kit: Context, found: Iterator[Block], dtype: torch.dtype, least: float = 0.0) -> str:
    """Compare every block in a dtype; return the largest deviation as a text."""
    torch.manual_seed(0)
    worst = max(
        (compare(kit, name, module, inputs, dtype, call=call, least=least), name)
        for name, module, inputs, call in found
    )
    return f"deviates by at most {worst[0]:.0e} ({worst[1]})"


@check("L2.blocks.fp32", capability="numerics.fp32", gate=True, fix="Compare the operator that is named on its own.")
def blocks_fp32(kit: Context) -> str:
    """Linear layers, norms, embeddings, activations and losses agree with the host in fp32, gradients included."""
    return run_blocks(kit, blocks(), torch.float32)


@check("L2.blocks.bf16", capability="numerics.bf16")
def blocks_bf16(kit: Context) -> str:
    """The same blocks agree with the host in bf16."""
    return run_blocks(kit, blocks(), torch.bfloat16)


@check("L2.blocks.fp16", capability="numerics.fp16")
def blocks_fp16(kit: Context) -> str:
    """The same blocks agree with the host in fp16."""
    return run_blocks(kit, blocks(), torch.float16)


# --------------------------------------------------------------------- convolutions and recurrent layers
def convolutions() -> Iterator[Block]:
    """Yield convolutions of one and two dimensions: strided, padded, dilated, in groups, transposed."""
    image, sound = noise(3, 4, 11, 9), noise(3, 4, 21)
    yield "conv2d", nn.Conv2d(4, 6, 3), [image], None
    yield "conv2d, strided and padded", nn.Conv2d(4, 6, 3, stride=2, padding=1), [image], None
    yield "conv2d, dilated in groups", nn.Conv2d(4, 8, 3, dilation=2, groups=2, bias=False), [image], None
    yield "conv2d, patches", nn.Conv2d(4, 6, 3, stride=3), [image], None
    yield "conv1d", nn.Conv1d(4, 6, 5, padding=2), [sound], None
    yield "conv2d, transposed", nn.ConvTranspose2d(4, 3, 3, stride=2), [image], None


@check("L2.conv.fp32", capability="numerics.conv", fix="Check convolution_backward for input, weight and bias apart.")
def conv_fp32(kit: Context) -> str:
    """Convolutions agree with the host, with the gradients of input, weight and bias."""
    return run_blocks(kit, convolutions(), torch.float32, SHORT_MANTISSA)


@check("L2.rnn.fp32", capability="numerics.rnn", fix="Do not declare it where fused cells have no kernel.")
def rnn_fp32(kit: Context) -> str:
    """GRU and LSTM agree with the host, gradients included."""
    found: list[Block] = [
        ("GRU", nn.GRU(12, 10, num_layers=2), [noise(7, 3, 12)], lambda layer, x: layer(x)[0]),
        ("LSTM", nn.LSTM(12, 10, batch_first=True), [noise(3, 7, 12)], lambda layer, x: layer(x)[0]),
    ]
    return run_blocks(kit, iter(found), torch.float32, SHORT_MANTISSA)


# --------------------------------------------------------------------- attention
def attentions() -> Iterator[Block]:
    """Yield attention without a mask, causal, with a mask of padding, and with fewer heads of keys than of queries."""
    query, key, value = (noise(2, 4, 9, 8, seed=number) for number in range(3))
    padding = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    padding[1, :, :, :4] = False
    nothing = nn.Identity()
    yield "attention", nothing, [query, key, value], lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v)
    yield "causal attention", nothing, [query, key, value], _causal
    yield "masked attention", nothing, [query, key, value, padding], _padded
    yield "grouped attention", nothing, [query, key[:, :2], value[:, :2]], _grouped
    yield "attention layer", nn.MultiheadAttention(32, 4, batch_first=True), [noise(2, 9, 32)], _layer


def _causal(_: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _padded(_: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _grouped(_: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _layer(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = layer(x, x, x, need_weights=False)[0]
    return output


@check("L2.attention.fp32", capability="numerics.attention", fix="Fall back to the composite form of attention.")
def attention_fp32(kit: Context) -> str:
    """Attention agrees with the host: plain, causal, with a mask, with grouped heads; gradients included."""
    return run_blocks(kit, attentions(), torch.float32)
