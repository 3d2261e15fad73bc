"""Sums over a state: the same for any cuts, another one for any change."""

from __future__ import annotations

import pytest
import torch

from plugrl.engines import state
from plugrl.engines.state import Block, Piece, StateSpec, add_checksums, checksums

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.complex64, torch.bool]


def pieces_of(whole: torch.Tensor, boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Piece]:
    spec = StateSpec.of(whole)
    blocks = [Block("w", offsets, sizes) for offsets, sizes in boxes]
    home = Block.of_whole("w", spec)
    return [Piece(block, spec, whole[block.within(home)].clone()) for block in blocks]


def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randint(0, 256, (*shape, 8), generator=generator, dtype=torch.uint8).view(dtype)[..., 0].contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_cuts_have_the_same_sum(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_CHUNK", 16)  # so that the cuts of the table do not fall together with those of rows
    state._weights.cache_clear()
    whole = tensor(dtype, 7, 9)
    expected = checksums(pieces_of(whole, [((0, 0), (7, 9))]))
    cuts = {
        "rows": [((0, 0), (3, 9)), ((3, 0), (4, 9))],
        "columns": [((0, 0), (7, 4)), ((0, 4), (7, 5))],
        "boxes": [((0, 0), (5, 2)), ((5, 0), (2, 2)), ((0, 2), (7, 7))],
    }
    try:
        for name, boxes in cuts.items():
            assert add_checksums([checksums([piece]) for piece in pieces_of(whole, boxes)]) == expected, name
    finally:
        state._weights.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_change_anywhere_and_two_elements_that_change_places_are_seen(dtype: torch.dtype) -> None:
    whole = tensor(dtype, 5, 8)
    expected = checksums(pieces_of(whole, [((0, 0), (5, 8))]))
    for row in range(5):
        for column in range(8):
            changed = whole.clone()
            raw = changed.view(torch.uint8).reshape(5, 8, -1)
            raw[row, column, 0] ^= 1
            assert checksums(pieces_of(changed, [((0, 0), (5, 8))])) != expected, (row, column)
    swapped = whole[[1, 0, 2, 3, 4]]
    assert checksums(pieces_of(swapped, [((0, 0), (5, 8))])) != expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_signs_that_change_in_pairs_are_seen(dtype: torch.dtype) -> None:
    whole = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).to(dtype)
    expected = checksums(pieces_of(whole, [((0, 0), (4, 6))]))
    for count in range(2, 24, 2):
        changed = whole.clone()
        changed.view(-1)[:count] *= -1
        assert checksums(pieces_of(changed, [((0, 0), (4, 6))])) != expected, count


def test_changes_that_balance_along_a_line_are_seen() -> None:
    whole = torch.arange(64, dtype=torch.int32).view(8, 8)
    expected = checksums(pieces_of(whole, [((0, 0), (8, 8))]))
    for first in range(60):
        changed = whole.clone()
        changed.view(-1)[first : first + 4] += torch.tensor([1, -1, -1, 1], dtype=torch.int32)
        assert checksums(pieces_of(changed, [((0, 0), (8, 8))])) != expected, first


def test_a_scalar_and_a_long_tensor_have_sums() -> None:
    step = torch.tensor(5.0)
    assert checksums([Piece(Block("s", (), ()), StateSpec.of(step), step)]) != {"s": 0}
    long = torch.randn(3 * state._CHUNK + 17)
    halves = [((0,), (state._CHUNK + 5,)), ((state._CHUNK + 5,), (2 * state._CHUNK + 12,))]
    assert checksums(pieces_of(long, halves)) == checksums(pieces_of(long, [((0,), (len(long),))]))
