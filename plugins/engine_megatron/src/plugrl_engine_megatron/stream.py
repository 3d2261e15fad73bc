"""Whole tensors from the blocks of all ranks, one after the other: no rank ever holds more than one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from plugrl.engines.state import Block
from plugrl_engine_fsdp.distributed import gather_objects, rank, world_size
from plugrl_engine_megatron.boxes import Held


@dataclass(frozen=True)
class Giver:
    """A block and the rank that has it."""

    rank: int
    block: Block


class Gatherer:
    """Who has which block of which tensor. Made together by all ranks, and good as long as blocks lie where they do."""

    def __init__(self, held: Iterable[Held]) -> None:
        own = [one.block for one in held if one.is_owner and one.block.count]
        self._givers: dict[str, list[Giver]] = {}
        for index, blocks in enumerate(gather_objects(own)):
            for block in blocks:
                self._givers.setdefault(block.key, []).append(Giver(index, block))

    def stream(
        self, held: Iterable[Held], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, whole tensor on the device) in the order of ``shapes``, on every rank. Collective."""
        own: dict[Block, Held] = {one.block: one for one in held if one.is_owner and one.block.count}
        for name, shape in shapes.items():
            whole = torch.empty(shape, dtype=dtype, device=device)
            for giver in self._givers[name]:
                if giver.rank == rank():
                    values = own[giver.block].read().to(device=device, dtype=dtype).contiguous()
                else:
                    values = torch.empty(giver.block.sizes, dtype=dtype, device=device)
                if world_size() > 1:
                    dist.broadcast(values, src=giver.rank)
                region = tuple(slice(a, a + n) for a, n in zip(giver.block.offsets, giver.block.sizes, strict=True))
                whole[region] = values
            yield name, whole
