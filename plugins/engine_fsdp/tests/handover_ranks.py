"""What a rank does in the hand-over tests: take over a state, train on, and give it away again."""

from __future__ import annotations

from typing import Any

import adapters
import block_policy as bp
import parity
import torch
import torch.distributed as dist

from plugrl.engines.base import BatchOptions
from plugrl.engines.state import RANDOM, Block, StateParts, StateSpec
from plugrl_engine_fsdp.distributed import rank, world_size

State = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Whole tensors by key, and plain values."""


def exported(engine: Any) -> State | None:
    """The whole state, put together on rank 0. Collective."""
    state = engine.export_state()
    shares: list[Any] = [None] * world_size()
    own = [(piece.block, piece.spec, piece.tensor.detach().cpu().clone()) for piece in state.pieces]
    if len(shares) > 1:
        dist.gather_object(own, shares if rank() == 0 else None)
    else:
        shares = [own]
    if rank() != 0:
        return None
    specs = {block.key: spec for share in shares for block, spec, _ in share}
    whole = {key: Block.of_whole(key, spec) for key, spec in specs.items()}
    parts = StateParts(specs, whole.values())
    seen = dict.fromkeys(specs, 0)
    for share in shares:
        for block, _, tensor in share:
            parts.fill(block, tensor)
            seen[block.key] += block.count
    assert seen == {key: block.count for key, block in whole.items()}, "an element is there twice or not at all"
    return {key: parts.read(block) for key, block in whole.items()}, dict(state.values)


def imported(engine: Any, state: State) -> None:
    """Take a whole state over. Collective."""
    tensors, values = state
    specs = {key: StateSpec.of(tensor) for key, tensor in tensors.items()}
    parts = StateParts(specs, engine.wanted_state(specs))
    for key, tensor in tensors.items():
        parts.fill(Block.of_whole(key, specs[key]), tensor)
    engine.import_state(parts, values, seed=0)


def go_on(
    index: int, world: int, backend: str, config: dict[str, Any], before: State | None, first: int, last: int,
    adapter: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Begin anew or from a state, train steps ``first`` to ``last``, and return losses and both states."""
    engine = adapters.make_engine(backend, config, **({} if adapter else {"lora": None}))
    if before is not None:
        imported(engine, before)
    begun = exported(engine)
    losses = []
    for step in range(first, last):
        with engine.train_mode():
            data = parity.share_of(index, world, step)
            result = engine.train_batch(data, bp.token_mean_loss, BatchOptions(micro_batch_size=len(data["input_ids"])))
        losses.append(parity.mean_over_ranks(result.loss))
    ended = exported(engine)
    return {"begun": begun, "losses": losses, "ended": ended, "random": torch.rand(())} if index == 0 else {}


def same_state(left: State, right: State, *, random: bool = False) -> list[str]:
    """Names of what differs in any bit; random states only when asked for."""
    names = left[0].keys() | right[0].keys()
    if not random:
        names = {name for name in names if not name.startswith(RANDOM)}
    wrong = [
        name for name in names
        if name not in left[0] or name not in right[0] or not torch.equal(_bits(left[0][name]), _bits(right[0][name]))
    ]  # fmt: skip
    return sorted(wrong) + ([] if left[1] == right[1] else ["values"])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
