"""Golden blocks: small computations that are done on the host and on the device, and compared.

The host computes in fp32 and is the reference; the device computes in the dtype under test. The deviation is the
largest difference divided by the largest value of the reference, so that one bound per dtype serves all tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from plugrl.testing.kit.checks import expect
from plugrl.testing.kit.context import HOST, Context

TOLERANCES: Mapping[torch.dtype, float] = {torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 6e-3}
"""Largest deviation by dtype: some units of rounding, times the square root of the sums' lengths here (at most 100)."""

Loss = Callable[..., torch.Tensor]


SHORT_MANTISSA = 3e-3
"""The bound for what a library may compute with ten bits of mantissa although it is fp32: convolutions, fused cells."""


def tolerance(kit: Context, dtype: torch.dtype) -> float:
    """Return the bound for a dtype; ``options = {"tolerance.float32" = "1e-3"}`` of the settings widens it."""
    name = str(dtype).removeprefix("torch.")
    return float(kit.options.get(f"tolerance.{name}", TOLERANCES[dtype]))


def deviation(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference relative to the largest magnitude of ``expected``; infinite where not finite."""
    got, expected = got.detach().to(HOST).double(), expected.detach().to(HOST).double()
    if got.shape != expected.shape or not torch.isfinite(got).all():
        return float("inf")
    if not got.numel():
        return 0.0
    return ((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6)).item()


def expect_close(
    kit: Context, got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, what: str, least: float = 0.0
) -> float:
    """Raise CheckFailed if ``got`` deviates by more than its dtype and ``least`` allow; return the deviation."""
    found, bound = deviation(got, expected), max(least, tolerance(kit, dtype))
    expect(found <= bound, f"{what} deviates from the host's", got=f"{found:.2e}", expected=f"at most {bound:.0e}")
    return found


def compare(
    kit: Context,
    name: str,
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    dtype: torch.dtype = torch.float32,
    *,
    call: Loss | None = None,
    least: float = 0.0,
) -> float:
    """Run ``call(module, *inputs)`` forward and backward on host and device; compare the output and all gradients.

    Floating inputs get gradients. The loss is a fixed random projection of the output. ``least`` is a bound that
    is always allowed. Returns the largest deviation.
    """
    with torch.no_grad():  # What the device sees is rounded to its dtype, so the reference starts from the same values.
        for parameter in module.parameters():
            parameter.copy_(parameter.to(dtype).to(parameter.dtype))
    rounded = [item.to(dtype).to(item.dtype) if item.is_floating_point() else item for item in inputs]
    expected = _run(module, rounded, torch.device(HOST), torch.float32, call)
    got = _run(module, rounded, kit.device(), dtype, call)
    worst = 0.0
    for key, reference in expected.items():
        expect(key in got, f"{name}: {key} is missing on the device")
        expect(got[key].dtype == dtype, f"{name}: the dtype of {key}", got=got[key].dtype, expected=dtype)
        worst = max(worst, expect_close(kit, got[key], reference, dtype, f"{name}: {key}", least))
    return worst


def _run(module: nn.Module, inputs: Sequence[torch.Tensor], device: torch.device, dtype: torch.dtype,
         call: Loss | None) -> dict[str, torch.Tensor]:  # fmt: skip
    there = copy.deepcopy(module).to(device=device, dtype=dtype)
    there.zero_grad()
    moved = [
        item.detach().to(device, dtype).requires_grad_() if item.is_floating_point() else item.to(device)
        for item in inputs
    ]
    output = call(there, *moved) if call is not None else there(*moved)
    weights = noise(output.numel(), seed=17).view(output.shape).to(device, output.dtype)
    (output * weights).sum().backward()
    found = {"the output": output.detach()}
    found.update({f"the gradient of input {index}": item.grad for index, item in enumerate(moved)
                  if item.grad is not None})  # fmt: skip
    found.update({f"the gradient of {name}": item.grad for name, item in there.named_parameters()
                  if item.grad is not None})  # fmt: skip
    return found


class TinyLM(nn.Module):
    """A causal language model of two blocks, with what the large ones have: embeddings, attention, gates, norms."""

    def __init__(self, vocabulary: int = 61, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (batch, tokens, vocabulary)."""
        hidden = self.embedding(tokens_BT)
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[:, None]
        rates = 10_000 ** (-torch.arange(0, hidden.shape[-1], 2, device=tokens_BT.device) / hidden.shape[-1])
        angles = positions * rates
        hidden = hidden + torch.cat([angles.sin(), angles.cos()], dim=-1).to(hidden.dtype)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Causal attention and a gated feed-forward layer, each after a norm and with a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.RMSNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states, (batch, tokens, width) like the given ones."""
        batch, tokens, width = hidden.shape
        mixed = self.mix(self.before(hidden)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(mixed[0], mixed[1], mixed[2], is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        inner = self.between(hidden)
        return hidden + self.down(nn.functional.silu(self.gate(inner)) * self.up(inner))


def tiny_lm() -> TinyLM:
    """Return the language model with the same weights at every call, which draws from a generator of its own."""
    model = TinyLM()
    source = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(0.0, 0.15, generator=source)
    return model


def tokens(batch: int = 4, length: int = 12, vocabulary: int = 61) -> torch.Tensor:
    """Return fixed tokens on the host, int64."""
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(99))


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return fixed normal numbers on the host."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
