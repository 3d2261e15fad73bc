"""Matrix products of a few rows with a large constant matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch

PACKED_FROM = 1 << 18
"""Matrices from this many elements on are packed: smaller ones gain nothing."""


class Linear:
    """Several linear modules of the same input as one product, with their outputs side by side."""

    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor | None, *, pack: bool) -> None:
        """Copy ``matrix`` [out, in]; ``pack`` allows the packed layout where this processor has one."""
        self._bias = bias
        self._packed = None
        self._matrix = matrix
        if pack and matrix.numel() >= PACKED_FROM and can_pack(matrix):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(matrix, 32)
        else:
            self._matrix = matrix.t().contiguous()

    @classmethod
    def of(
        cls,
        modules: Sequence[torch.nn.Linear],
        *,
        pack: bool,
        in_scale: torch.Tensor | None = None,
        out_scales: Sequence[float] | None = None,
    ) -> Linear:
        """Copy the weights of ``modules``, which take the same input.

        in_scale [in] multiplies the inputs, out_scales (one per module) the outputs, biases included.
        """
        scales = out_scales or [1.0] * len(modules)
        matrix = torch.cat([module.weight.detach() * scale for module, scale in zip(modules, scales, strict=True)])
        if in_scale is not None:
            matrix *= in_scale
        if all(module.bias is None for module in modules):
            return cls(matrix, None, pack=pack)
        biases = [
            matrix.new_zeros(module.out_features) if module.bias is None else module.bias.detach() * scale
            for module, scale in zip(modules, scales, strict=True)
        ]
        return cls(matrix, torch.cat(biases), pack=pack)

    def __call__(self, rows: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return rows [A, in] times the matrix, plus its bias and ``residual`` [A, out]."""
        if self._packed is not None:
            product = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
            return product if residual is None else product.add_(residual)
        if residual is not None:
            product = torch.addmm(residual, rows, self._matrix)
            return product if self._bias is None else product.add_(self._bias)
        return rows @ self._matrix if self._bias is None else torch.addmm(self._bias, rows, self._matrix)


def can_pack(matrix: torch.Tensor) -> bool:
    """Whether torch's packed product takes this matrix: fp32 on the host, in a build that has the operations."""
    return (
        matrix.device.type == "cpu"
        and matrix.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
