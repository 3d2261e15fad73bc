"""Digests of weights, so that two processes can tell whether they hold the same ones without sending them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def weight_digests(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Return the SHA-256 of dtype, shape and bytes of each tensor by name; tensors may be on any device."""
    found = {}
    for name, tensor in tensors:
        host = tensor.detach().cpu().contiguous()
        digest = hashlib.sha256(f"{host.dtype} {tuple(host.shape)}".encode())
        digest.update(host.reshape(-1).view(torch.uint8).numpy().tobytes())
        found[name] = digest.hexdigest()
    return found
