"""A sharded policy is built with weights on rank 0 alone; every rank gets its part, whatever the builder can do."""

from __future__ import annotations

from typing import Any

import building_ranks
import pytest
import torch

from plugrl.testing.ranks import RankPool


@pytest.mark.parametrize(
    ("kind", "world", "config", "elsewhere"),
    [
        ("plain", 2, {}, ["meta"]),
        ("plain", 2, {"ignored_modules": r"blocks\.1\.mlp|spare", "cpu_offload": True}, ["meta"]),
        ("plain", 4, {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}, ["meta"]),
        ("reads", 2, {}, ["meta", "cpu"]),
        ("notes", 2, {}, ["meta", "cpu"]),
        ("hides", 2, {}, ["meta", "cpu"]),
    ],
)
def test_every_rank_has_its_part_of_the_weights_of_rank_0(
    ranks: RankPool, kind: str, world: int, config: dict[str, Any], elsewhere: list[str]
) -> None:
    first, *others = ranks.run(building_ranks.start, kind, config, world=world)
    assert first["built"] == ["cpu"]
    assert {"scale", "table", "embed.weight", "spare.out.bias"} <= first["weights"].keys()
    assert torch.equal(first["weights"]["table"], torch.arange(4.0)), "a buffer that is not saved"
    for rank in others:
        assert rank["built"] == elsewhere, "without weights where the builder can, else with them"
        for name, tensor in first["weights"].items():
            assert torch.equal(rank["weights"][name], tensor), name
        assert rank["norm"] == first["norm"] > 0 and rank["tied"]
    expected = building_ranks.bp.BlockPolicy(seed=1, spare=True)
    for name, tensor in expected.named_parameters():
        assert torch.equal(first["weights"][name], tensor), name


def test_what_goes_wrong_on_one_rank_is_said_on_all(ranks: RankPool) -> None:
    first, second = ranks.run(building_ranks.start, "fails", {}, world=2)
    assert first["error"] == "OSError: the file is on no disk"
    assert second["error"].startswith("ConfigError: rank 0 cannot build the model: ") and "no disk" in second["error"]
    for rank in ranks.run(building_ranks.start, "other", {}, world=2):
        assert "rank 1 built another model than rank 0; they differ in blocks.0.mlp.0.bias (16,)" in rank["error"]


@pytest.mark.slow
def test_no_device_ever_holds_a_whole_model() -> None:
    """On a device that is not the host, and that counts its bytes: vdev as it is built in C++."""
    pytest.importorskip("plugrl_platform_vdev")
    pool = RankPool(2, platform="vdev", env={"VDEV_BUILD": "cpp"})
    off = {"param_offload": True, "optimizer_offload": True, "ema": {"enable": True}}
    try:
        plain, offloaded, on_host = (
            pool.run(building_ranks.device_memory, config, world=2, timeout_s=300)
            for config in ({}, off, {"cpu_offload": True})
        )
    finally:
        pool.close()
    for found in plain:
        unit = found["model"] / 8
        assert found["start"] < 0.52 * found["model"]
        assert found["peak"] < found["start"] + 1.2 * unit
        assert found["rest"] > 1.4 * found["model"], "shards, and the optimizer's state of each"
    for found in offloaded:
        assert found["start"] < 0.01 * found["model"] and found["rest"] < 0.01 * found["model"]
    for found in on_host:
        assert found["peak"] < 0.3 * found["model"] and found["rest"] < 0.01 * found["model"]
