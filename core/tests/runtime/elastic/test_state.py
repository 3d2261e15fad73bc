"""Blocks of a state: any cut goes to any other one, and the sums of both sides are equal only if the values are."""

import itertools

import pytest
import torch

from plugrl.engines.state import Block, Piece, StateParts, StateSpec, add_checksums, checksums, whole_pieces
from plugrl.errors import PlugRLError
from plugrl.runtime.elastic.transfer import plan_ways


def cut(key: str, tensor: torch.Tensor, dim: int, ranks: int) -> list[list[Piece]]:
    """The pieces of each rank; some may be empty."""
    spec, shares, offset = StateSpec.of(tensor), [], 0
    for part in tensor.tensor_split(ranks, dim):
        offsets = tuple(offset if at == dim else 0 for at in range(tensor.dim()))
        offset += part.shape[dim]
        shares.append([Piece(Block(key, offsets, tuple(part.shape)), spec, part)] if part.numel() else [])
    return shares


def sums(shares: list[list[Piece]]) -> dict[str, int]:
    return add_checksums(checksums(share) for share in shares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize(("old", "new"), [((0, 1), (0, 3)), ((0, 3), (1, 2)), ((1, 4), (0, 7)), ((2, 2), (1, 5))])
def test_any_cut_becomes_any_other_one(dtype, old, new):
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randint(-100, 100, (5, 7, 3), generator=generator).to(dtype)
    given, wanted = cut("w", tensor, *old), cut("w", tensor, *new)
    wants = [[piece.block for piece in share] for share in wanted]
    ways = plan_ways([[piece.block for piece in share] for share in given], wants)
    for j, share in enumerate(wanted):
        parts = StateParts({"w": StateSpec.of(tensor)}, wants[j])
        for i, blocks in ((i, ways[i, j]) for i in range(len(given)) if (i, j) in ways):
            for block in blocks:
                piece = given[i][0]
                parts.fill(block, piece.tensor[block.within(piece.block)])
        assert all(torch.equal(parts.read(piece.block), piece.tensor) for piece in share)
    assert sums(given) == sums(wanted) == sums([list(whole_pieces([("w", tensor)]))])


def test_what_nobody_offers_is_missed_before_anything_is_sent():
    tensor = torch.zeros(4, 2)
    given, wanted = cut("w", tensor, 0, 2), cut("w", tensor, 0, 1)
    with pytest.raises(PlugRLError, match="4 elements of w are offered by no rank"):
        plan_ways([[piece.block for piece in given[0]]], [[piece.block for piece in wanted[0]]])


def test_every_change_and_every_exchange_of_values_shows_in_the_sums():
    tensor = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    known = sums(cut("w", tensor, 1, 3))
    for place in itertools.product(range(4), range(6)):
        changed = tensor.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(1e9))
        assert sums(cut("w", changed, 0, 2)) != known, place
    assert sums(cut("w", tensor.flip(1), 0, 2)) != known
    assert sums(cut("w", -torch.zeros(2, 2), 0, 1)) != sums(cut("w", torch.zeros(2, 2), 0, 1))
    nan = torch.full((3,), float("nan"))
    assert sums(cut("w", nan, 0, 2)) == sums(cut("w", nan.clone(), 0, 1))


def test_sums_of_large_tensors_are_those_of_any_cut():
    tensor = torch.arange(2**21 + 12, dtype=torch.float32).reshape(4, -1)
    assert sums(cut("w", tensor, 0, 1)) == sums(cut("w", tensor, 0, 3)) == sums(cut("w", tensor, 1, 5))
    changed = tensor.clone()
    changed[3, -1] += 1
    assert sums(cut("w", changed, 1, 2)) != sums(cut("w", tensor, 1, 2))
