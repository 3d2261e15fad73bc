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
    def of(cls, modules: Sequence[torch.nn.Linear], *, pack: bool) -> Linear:
        """Copy the weights of ``modules``, which take the same input."""
        matrix = torch.cat([module.weight.detach() for module in modules])
        biases = [module.bias for module in modules]
        bias = None
        if any(item is not None for item in biases):
            bias = torch.cat(
                [
                    matrix.new_zeros(module.out_features) if module.bias is None else module.bias.detach()
                    for module in modules
                ]
            )
        return cls(matrix, bias, pack=pack)

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
