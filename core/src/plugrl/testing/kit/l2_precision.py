"""L2, precision: low precision really is computed in low precision, and autocast really casts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import HOST, Context
from plugrl.testing.kit.golden import expect_close, noise

_BITS = {torch.bfloat16: 8, torch.float16: 11}
"""Significant bits of a number, the leading one included."""


def _is_rounded_everywhere(kit: Context, dtype: torch.dtype) -> None:
    """Numbers of the dtype are stored in it, and each operation rounds: adding one to the first gap changes nothing."""
    device, gap = kit.device(), float(2 ** _BITS[dtype])
    sample = noise(257)
    there = sample.to(device).to(dtype)
    expect_equal(there.element_size(), 2, "the bytes of an element")
    expect(torch.equal(there.to(HOST), sample.to(dtype)), f"fp32 to {dtype} rounds otherwise than the host")
    counter = torch.full((8,), gap, dtype=dtype, device=device)
    for _ in range(4):
        counter = counter + 1
    expect_equal(counter.tolist(), [gap] * 8, f"{gap:.0f} after adding one four times")
    column, row = torch.full((8, 1), gap + 2, dtype=dtype), torch.ones(1, 8, dtype=dtype)
    product = column.to(device) @ row.to(device)
    expect_equal(product[0].tolist(), [gap + 2] * 8, f"{gap + 2:.0f} times one")


def _differs_from_fp32(kit: Context, dtype: torch.dtype) -> str:
    """A matrix product in the dtype differs from that in fp32 by about the dtype's rounding."""
    left, right = noise(48, 64, seed=1), noise(64, 48, seed=2)
    low = left.to(kit.device(), dtype) @ right.to(kit.device(), dtype)
    expect_equal(low.dtype, dtype, "the dtype of a matrix product")
    exact = left @ right
    found = expect_close(kit, low, exact, dtype, f"a matrix product in {dtype}")
    floor = 2.0 ** -(_BITS[dtype] + 4)
    expect(found > floor, f"a matrix product in {dtype} is as exact as fp32, so it was not computed in it",
           got=f"{found:.1e}", expected=f"more than {floor:.1e}")  # fmt: skip
    same = torch.equal(low.float().to(dtype), low)
    expect(same, f"the result of a matrix product in {dtype} has more bits than the dtype")
    return f"deviates from fp32 by {found:.1e}"


@check("L2.bf16.is_bf16", capability="numerics.bf16", fix="Do not keep fp32 behind a tensor that says bf16.")
def bf16(kit: Context) -> str:
    """bf16 is stored in two bytes, every operation rounds to it, and a matrix product shows it."""
    _is_rounded_everywhere(kit, torch.bfloat16)
    return _differs_from_fp32(kit, torch.bfloat16)


@check("L2.fp16.is_fp16", capability="numerics.fp16", fix="Do not keep fp32 behind a tensor that says fp16.")
def fp16(kit: Context) -> str:
    """fp16 is stored in two bytes, every operation rounds to it, overflows become infinite."""
    _is_rounded_everywhere(kit, torch.float16)
    large = torch.full((4,), 60_000.0, dtype=torch.float16, device=kit.device())
    expect_equal((large + large).tolist(), [float("inf")] * 4, "60000 + 60000 in fp16")
    return _differs_from_fp32(kit, torch.float16)


# --------------------------------------------------------------------- autocast
_FIX = "Register kernels for the Autocast key of the device: a fall-through runs, and casts nothing."


@check("L2.autocast.casts", capability="numerics.autocast", fix=_FIX)
def autocast_casts(kit: Context) -> None:
    """Under autocast matrix products, linear layers, attention and convolutions compute in the lower dtype."""
    device, name = kit.device(), kit.platform.device_name
    x = noise(6, 16).to(device)
    query = noise(2, 2, 5, 8).to(device)
    layer = nn.Linear(16, 16).to(device)
    with torch.autocast(name, dtype=torch.bfloat16):
        found = {
            "a linear layer": layer(x),
            "a matrix product": x @ x.t(),
            "a batched product": torch.bmm(query[0], query[0].transpose(1, 2)),
            "attention": F.scaled_dot_product_attention(query, query, query),
        }
        if kit.declares("numerics.conv"):
            found["a convolution"] = F.conv1d(query[0], noise(3, 5, 3).to(device))
    for what, output in found.items():
        expect_equal(output.dtype, torch.bfloat16, f"the dtype of {what} under autocast")
    exact = x.to(HOST) @ x.to(HOST).t()
    expect_close(kit, found["a matrix product"], exact, torch.bfloat16, "a product under autocast")


@check("L2.autocast.leaves_alone", capability="numerics.autocast", fix=_FIX)
def autocast_leaves(kit: Context) -> None:
    """Sums, softmax and losses of fp32 stay fp32; nothing is cast outside, in a disabled part, or in parameters."""
    device, name = kit.device(), kit.platform.device_name
    x, labels = noise(6, 16).to(device), torch.arange(6).to(device)
    layer = nn.Linear(16, 16).to(device)
    with torch.autocast(name, dtype=torch.bfloat16):
        expect_equal(x.softmax(-1).dtype, torch.float32, "the dtype of a softmax of fp32")
        expect_equal(F.cross_entropy(x, labels).dtype, torch.float32, "the dtype of a loss of fp32")
        expect_equal((x + x).sum().dtype, torch.float32, "the dtype of a sum of fp32")
        with torch.autocast(name, enabled=False):
            expect_equal(layer(x).dtype, torch.float32, "the dtype of a linear layer where autocast is disabled")
        layer(x).float().square().mean().backward()
    expect_equal(layer(x).dtype, torch.float32, "the dtype of a linear layer outside autocast")
    expect_equal(layer.weight.dtype, torch.float32, "the dtype of the parameter")
    gradient = layer.weight.grad
    expect_equal(gradient.dtype if gradient is not None else None, torch.float32, "the dtype of its gradient")
    kit.platform.synchronize()
