"""Tensors from device to device by the platform's collectives, between processes that share no group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import transport_ranks as on_ranks
from patient_pool import PatientPool

from plugrl.testing.fork_server import shared_server
from plugrl.testing.rank_pool import RankPool

pytestmark = pytest.mark.slow

BY_COLLECTIVES = ("ccl", "different devices: the platform's collectives")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Two ranks on the device itself: tensors of the build in Python do not travel."""
    found = PatientPool(2, platform="vdev", server=shared_server("torch"))
    try:
        yield found
    finally:
        found.close()


def test_trees_go_from_device_to_device_by_the_collectives_in_both_directions(pool: RankPool) -> None:
    for found in pool.run(on_ranks.exchanged, world=2):
        assert found["wrong"] == []
        assert BY_COLLECTIVES in map(tuple, found["ways"])
        assert {way for way, _ in found["ways"]} == {"ccl", "inline"}, "small tensors stay within the message"


def test_a_transfer_that_fails_is_told_at_both_ends_and_the_pair_goes_on(pool: RankPool) -> None:
    sender, receiver = pool.run(on_ranks.failed, world=2)
    assert sender == ["vccl failed: RuntimeError: the link is down", "group 1"]
    assert receiver[0] == "first: True" and receiver[2] == "after: True"
    assert receiver[1].startswith("vccl failed: ")


def test_two_processes_on_one_device_never_use_collectives(pool: RankPool) -> None:
    sender, receiver = pool.run(on_ranks.on_one_device, world=2)
    why = "through the host: vdev shares no device memory between processes"
    assert sender[0] == f"same node: shared memory, one copy; {why}"
    assert 'transport="ccl" cannot carry' in sender[1] and why in sender[1] and receiver == [True]
