"""The device without a compiler: what it has is as on the host, and what it lacks it does not offer."""

from __future__ import annotations

import pytest
import python_build_ranks as on_ranks

from plugrl.testing.ranks import RankPool


def test_training_gives_the_numbers_of_the_host(python_pool: RankPool) -> None:
    found = python_pool.run(on_ranks.training, world=1)[0]
    (losses, gradients), (host_losses, host_gradients) = found["vdev:1"], found["cpu"]
    assert losses == pytest.approx(host_losses, rel=1e-6)
    assert gradients == pytest.approx(host_gradients, rel=1e-4)


def test_tensors_behave_as_on_a_device(python_pool: RankPool) -> None:
    found = python_pool.run(on_ranks.basics, world=1)[0]
    assert found["repr"] == "tensor([1., 1.], device='vdev:1')"
    assert found["values"] == [[0.0, 1.0, 2.0], [13.0, 14.0, 15.0]]
    assert (found["index"], found["mask"]) == ([[13.0, 14.0, 15.0]], [13.0, 14.0, 15.0])
    assert found["moved"] == ("vdev:0", True)
    assert (found["deepcopy"], found["meta"], found["context"]) == ("vdev:1", "vdev:1", "vdev:1")
    assert (found["literal"], found["accelerator"], found["after"]) == ([1.5], (2, "vdev"), 0)


def test_each_device_has_its_random_numbers(python_pool: RankPool) -> None:
    assert [name for name, holds in python_pool.run(on_ranks.random_numbers, world=1)[0].items() if not holds] == []


def test_what_must_not_work_says_why(python_pool: RankPool) -> None:
    found = python_pool.run(on_ranks.refusals, world=1)[0]
    same = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, vdev:"
    assert found["two devices"].startswith(same + "1 and vdev:0!")
    assert found["host"].startswith(same + "0 and cpu!")
    assert found["index"] == "RuntimeError: vdev:7 does not exist: 2 device(s) are visible"
    assert found["chosen"] == "RuntimeError: vdev:2 does not exist: 2 device(s) are visible"
    assert "cannot change the size" in found["resize"]
    assert "move them to the cpu first" in found["pickle"]


def test_what_is_lacking_is_not_offered(python_pool: RankPool) -> None:
    assert python_pool.run(on_ranks.offered, world=1) == [("platform.rng",)]
