"""Patches: exact for any bits, small when little changed, and never put on the wrong weights."""

import pytest

pytest.importorskip("torch")

import torch

from plugrl.runtime.sync import delta


def bits(values: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int16 if dtype == torch.bfloat16 else torch.int32).view(dtype)


@pytest.mark.parametrize("seed", range(30))
def test_a_difference_put_on_the_old_is_the_new(seed):
    generator = torch.Generator().manual_seed(seed)
    dtype = [torch.float32, torch.bfloat16, torch.int8, torch.float64, torch.bool, torch.complex128][seed % 6]
    size = int(torch.randint(1, 200_000, (), generator=generator))
    old = torch.randint(0, 100, (size,), generator=generator).to(dtype)
    new = old.clone()
    count = int(torch.randint(0, 1 + size // (1 + seed), (), generator=generator))
    where = torch.randperm(size, generator=generator)[:count]
    new[where] = torch.randint(0, 100, (count,), generator=generator).to(dtype)
    change = delta.difference(old, new)
    parts = dict(delta.encode("w", change))
    decoded = delta.decode(parts, {"w": change.before})
    for found in decoded.values():
        assert delta.digest(delta.elements(old)[found.positions], found.positions) == found.before
        delta.apply(old, found)
    assert torch.equal(delta.elements(old), delta.elements(new))


def test_signs_of_zero_and_payloads_of_nan_are_kept():
    old = bits([0x0000, -0x8000, 0x7FC0, 0x7FC1, 0x3F80], torch.bfloat16)
    new = bits([-0x8000, 0x0000, 0x7FC0, 0x7FC2, 0x3F80], torch.bfloat16)
    change = delta.difference(old, new)
    assert change.positions.tolist() == [0, 1, 3], "0.0 and -0.0 differ, a NaN equals itself, another NaN does not"
    delta.apply(old, change)
    assert torch.equal(delta.elements(old), delta.elements(new))


def test_parts_of_a_larger_tensor_are_compared_wherever_they_begin(wire):
    line = wire("patch", 1)
    whole = torch.arange(1000, dtype=torch.float32).bfloat16()
    line.deliver({"w": whole[3:800]}, 1)
    whole[[3, 8, 799]] += 7
    report = line.deliver({"w": whole[3:800]}, 2)
    assert not report.full and 0 < report.payload_bytes < 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_percent_travels_as_little_and_nothing_as_nothing(wire, dtype):
    line = wire("patch")
    state = {"w": torch.randn(500, 400).to(dtype), "frozen": torch.randn(300).to(dtype)}
    full = line.deliver(state, 1)
    assert full.full and full.payload_bytes == sum(t.nbytes for t in state.values())
    state["w"].view(-1)[torch.randperm(200_000)[:2_000]] += 1
    little = line.deliver(state, 2)
    assert not little.full and little.tensors == 1 and little.payload_bytes < full.payload_bytes / 10 / 2
    nothing = line.deliver(state, 3)
    assert (nothing.payload_bytes, nothing.tensors, nothing.full) == (0, 0, False)


def test_a_tensor_that_changed_much_is_sent_whole_beside_patches(wire):
    line = wire("patch", patch={"dense_above": 0.2})
    state = {"much": torch.zeros(10_000), "little": torch.zeros(10_000)}
    line.deliver(state, 1)
    state["much"][:3_000] = 1
    state["little"][5] = 1
    report = line.deliver(state, 2)
    assert not report.full and state["much"].nbytes < report.payload_bytes < state["much"].nbytes + 100


def test_a_missed_version_forces_everything(wire, random_state):
    line = wire("patch")
    line.deliver(random_state(1), 1)
    line.receivers[1]._end._snapshot_version = 0  # As if it had not been there for version 1.
    assert line.deliver(random_state(2), 2).full
    assert not line.deliver(random_state(2), 3).full


def test_a_broken_transfer_forces_everything(wire, random_state):
    line = wire("patch")
    line.deliver(random_state(1), 1)
    line.transfer(random_state(2), 2, broken_after=5)
    assert line.deliver(random_state(3), 3).full


def test_a_snapshot_that_is_not_the_senders_is_never_merged(wire):
    line = wire("patch")
    state = {"w": torch.arange(10_000.0), "v": torch.ones(100)}
    line.deliver(state, 1)
    line.receivers[1]._end._current["w"][77] = -1  # Something wrote to it.
    state["w"][70:80] += 1
    report = line.deliver(state, 2)
    assert report.full, "the receiver asked for all weights in the same transfer"
    state["v"][3] = 5
    assert not line.deliver(state, 3).full


def test_a_tensor_that_is_another_one_is_no_patch(wire):
    line = wire("patch", 1)
    line.deliver({"w": torch.ones(10)}, 1)
    error, _ = line.transfer({"w": torch.ones(11)}, 2)
    assert "w is not the tensor that it was" in str(error)
    line.deliver({"w": torch.ones(11)}, 2)
