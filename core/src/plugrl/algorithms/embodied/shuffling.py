"""The order in which one update epoch goes through its samples."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def permutation(count: int, *, seed: int, step: int, epoch: int) -> Tensor:
    """Return a permutation of ``count`` rows, LongTensor [count] on the CPU.

    It is another one at every training step and update epoch, and the same on every rank, however often it is asked
    for: it depends on the three numbers alone.
    """
    text = f"{seed}/{step}/{epoch}".encode()
    source = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    return torch.randperm(count, generator=torch.Generator().manual_seed(source))
