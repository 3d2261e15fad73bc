"""Training on two vdev devices gives the numbers of training on the host, over vccl alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parity_ranks as on_ranks
import pytest

from plugrl.testing.fork_server import shared_server
from plugrl.testing.ranks import RankPool


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vccl")


@pytest.fixture(scope="module")
def pool(log_folder: Path) -> Iterator[RankPool]:
    devices = RankPool(4, platform="vdev", env={"VDEV_LOG": str(log_folder), "VDEV_DEVICES": "4"},
                       server=shared_server("torch"))  # fmt: skip
    try:
        yield devices
    finally:
        devices.close()


def _both(pool: RankPool, ranks: RankPool, backend: str, config: dict[str, Any], world: int = 2) -> tuple[Any, Any]:
    run = {"world": world, "timeout_s": 280.0}
    return (
        pool.run(on_ranks.train, backend, config, **run)[0],
        ranks.run(on_ranks.train, backend, config, **run)[0],
    )


FP32 = {"dtype": "fp32"}
CASES: dict[str, tuple[str, dict[str, Any], float]] = {
    "fsdp2": ("fsdp2", FP32, 1e-5),
    # The device rounds between operators that the host fuses: two steps of bf16's last digit.
    "fsdp2_bf16": ("fsdp2", {"dtype": "bf16"}, 2**-7),
    "ddp": ("ddp", FP32, 1e-5),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_norms_and_weights_are_those_of_the_host(pool: RankPool, ranks: RankPool, case: str) -> None:
    backend, config, tolerance = CASES[case]
    device, host = _both(pool, ranks, backend, config)
    assert device["devices"] == ["vdev:0"] and host["devices"] == ["cpu"]
    assert device["engine"].startswith("plugrl_platform_vdev.engines.fsdp:")
    assert device["losses"] == pytest.approx(host["losses"], rel=tolerance)
    assert device["norms"] == pytest.approx(host["norms"], rel=tolerance)
    assert min(device["norms"]) > on_ranks.OPTIM["clip_grad"]  # every step was cut
    assert device["weights"].keys() == host["weights"].keys()
    if config != FP32:
        return
    for name, values in device["weights"].items():
        assert values == pytest.approx(host["weights"][name], abs=tolerance), name


def test_every_collective_ran_on_vccl_and_no_other_accelerator_was_touched(
    pool: RankPool, ranks: RankPool, log_folder: Path
) -> None:
    from plugrl_platform_vdev import logs

    before = len(logs.read(log_folder, "collectives"))
    # As with most vendors' collectives, a tensor of the host would be an error.
    found = pool.run(on_ranks.train_under_watch, "fsdp2", FP32, {"VDEV_NO_HOST": "1"}, world=2, timeout_s=280.0)
    for rank in found:
        assert rank["backend"] == "vccl"
        assert rank["gloo_groups"] == []
        assert rank["accelerators"] == []
    lines = logs.read(log_folder, "collectives")[before:]
    kinds = {(line["op"], line["device"].split(":")[0]) for line in lines if line["device"]}
    assert {("all_gather_single", "vdev"), ("reduce_scatter_single", "vdev"), ("all_reduce", "vdev")} <= kinds
    assert {kind for _, kind in kinds} == {"vdev"}


def test_a_backend_without_an_average_gives_the_same_by_sums(pool: RankPool, ranks: RankPool) -> None:
    device = pool.run(on_ranks.train, "fsdp2", FP32, {"VDEV_NO_AVG": "1"}, world=2, timeout_s=280.0)[0]
    host = ranks.run(on_ranks.train, "fsdp2", FP32, world=2, timeout_s=280.0)[0]
    assert device["losses"] == pytest.approx(host["losses"], rel=1e-5)


SLOW_CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "hsdp": ("fsdp2", {**FP32, "parallelism": {"dp_replicate": 2, "dp_shard": 2}}, 4),
    "fsdp1": ("fsdp", FP32, 2),
    "offload": ("fsdp2", {**FP32, "param_offload": True, "optimizer_offload": True}, 2),
    "ddp_offload": ("ddp", {**FP32, "param_offload": True, "optimizer_offload": True}, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_CASES)
def test_other_layouts_agree_with_the_host(pool: RankPool, ranks: RankPool, case: str) -> None:
    backend, config, world = SLOW_CASES[case]
    device, host = _both(pool, ranks, backend, config, world)
    assert device["losses"] == pytest.approx(host["losses"], rel=1e-5)
    assert device["norms"] == pytest.approx(host["norms"], rel=1e-5)
