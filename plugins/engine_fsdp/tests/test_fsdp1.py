"""FSDP1 on real ranks: parity with one process, checkpoints across layouts, precision of units, kept gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsdp1_worker as worker
import parity
import pytest
import torch

from plugrl.engines.topology import Topology
from plugrl.errors import ConfigError
from plugrl.testing.ranks import RankPool
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import UnitPrecision, backend_problems
from plugrl_engine_fsdp.topology import fsdp1_topology, sharding_strategy
from plugrl_engine_fsdp.wrapping.gradients import gradient_dtype

STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "no_shard": (2, {"sharding_strategy": "no_shard"}),
    "full_shard": (2, {"sharding_strategy": "full_shard", "forward_prefetch": True, "backward_prefetch": "pre"}),
    "shard_grad_op": (2, {"sharding_strategy": "shard_grad_op", "limit_all_gathers": True}),
    "flat": (2, {"use_orig_params": False, "backward_prefetch": "post"}),
    "flat no_shard": (2, {"use_orig_params": False, "sharding_strategy": "no_shard"}),
    "hybrid": (4, {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 2}),
}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], exact: bool = False) -> None:
    """Same names, and values equal to fp32 rounding or bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.fixture(scope="module")
def reference(ranks: RankPool) -> dict[str, Any]:
    """One process without any wrapper."""
    return ranks.run(worker.train, "ddp", {}, world=1)[0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_as_one_process_and_recovers(
    name: str, ranks: RankPool, reference: dict[str, Any]
) -> None:
    world, config = STRATEGIES[name]
    found = ranks.run(worker.train, "fsdp", config, world=world)
    assert all(rank["layout"] == "fsdp" and rank["failed"] for rank in found)
    for key in ("norms", "norms_after"):
        assert found[0][key] == pytest.approx(reference[key], rel=1e-5)
    assert_close(found[-1]["weights"], reference["weights"])
    assert_close(found[0]["end"], reference["end"])
    outputs = torch.cat([rank["outputs"] for rank in found])
    torch.testing.assert_close(outputs, reference["outputs"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("full_shard", (1, "ddp", {})),
        ("no_shard", (2, "fsdp2", {})),
        ("flat", (2, "fsdp", {"sharding_strategy": "no_shard"})),
        ("hybrid", (2, "fsdp", {})),
    ],
)
def test_a_checkpoint_loads_there_and_elsewhere(name: str, other: Any, ranks: RankPool, tmp_path: Path) -> None:
    world, config = STRATEGIES[name]
    saved = ranks.run(worker.train_and_save, "fsdp", config, str(tmp_path / "c"), world=world)[0]
    same = ranks.run(worker.resume, "fsdp", config, str(tmp_path / "c"), world=world)[0]
    for key in ("saved", "state", "end"):
        assert_close(same[key], saved[key], exact=True)
    there, backend, section = other
    elsewhere = ranks.run(worker.resume, backend, section, str(tmp_path / "c"), world=there)[0]
    assert_close(elsewhere["saved"], saved["saved"], exact=True)
    assert_close(elsewhere["state"], saved["state"], exact=True)
    assert elsewhere["norms"] == pytest.approx(saved["norms"], rel=1e-5)


@pytest.mark.parametrize("config", [{}, {"use_orig_params": False}, {"sharding_strategy": "no_shard"}])
def test_the_norm_is_that_of_fsdps_own_clipping(config: dict[str, Any], ranks: RankPool) -> None:
    for ours, theirs, clipped in ranks.run(worker.clip_as_torch, config, world=2):
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert clipped == pytest.approx(min(ours, worker.OPTIM["clip_grad"]), rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"sharding_strategy": "no_shard"}, {"sharding_strategy": "full_shard"},
     {"strategy": "fsdp2", "fsdp2_unit_precision": True, "sharding_strategy": None}],
    ids=["no_shard", "full_shard", "fsdp2"],
)  # fmt: skip
def test_the_example_of_the_seed_trains_with_its_units_in_fp32(changes: dict[str, Any], ranks: RankPool) -> None:
    for found in ranks.run(worker.train_flow, changes, world=2):
        assert found["losses"][1] < found["losses"][0]
        assert found["dtypes"] == {"torch.float32"}
        seen = found["seen"]
        assert {dtypes.split()[0] for dtypes in seen["img.stem"]} == {"float32"}
        # FSDP1 leaves outputs as they are, FSDP2 casts them to what the unit around computes in.
        output = "bfloat16" if changes.get("strategy") == "fsdp2" else "float32"
        assert seen["img.encoder.layers.1.mlp.up"] == ["float32 float32 float32"]
        for path in ("action_in_proj", "time_mlp_out"):
            assert seen[path] == [f"float32 float32 {output}"], path
        (norm,) = seen["expert.layers.0.input_norm"]
        assert norm == "float32 bfloat16 bfloat16"
        assert seen["expert.layers.1.attention"] == ["bfloat16 bfloat16 bfloat16"]


KEPT = {
    ("full_shard", "fp32", False): "float32",
    ("full_shard", "fp32", True): "bfloat16",
    ("shard_grad_op", "fp32", True): "bfloat16",
    ("no_shard", "fp32", False): "float32",
    ("no_shard", "fp32", True): "float32",
    ("no_shard", "bf16", False): "float32",
    ("no_shard", "bf16", True): "bfloat16",
}


def test_kept_gradients_have_the_dtype_of_the_table(ranks: RankPool) -> None:
    for found in ranks.run(worker.gradient_dtypes, list(KEPT), world=2):
        assert found == [{dtype} for dtype in KEPT.values()]
    for (strategy, reduce, keep), dtype in KEPT.items():
        precision = UnitPrecision(param_dtype="bf16", reduce_dtype=reduce, keep_low_precision_grads=keep)
        predicted = gradient_dtype(precision, torch.float32, sharded=strategy != "no_shard")
        assert str(predicted) == f"torch.{dtype}"
    kept = UnitPrecision(param_dtype="bf16", reduce_dtype="fp32", keep_low_precision_grads=True)
    assert gradient_dtype(kept, torch.float32, sharded=False, cpu_offload=True) == torch.bfloat16
    assert gradient_dtype(UnitPrecision(keep_low_precision_grads=True), torch.bfloat16, sharded=True) == torch.bfloat16


def test_small_gradients_kept_in_fp16_are_unscaled_in_fp32(ranks: RankPool) -> None:
    kept, converted = ranks.run(worker.small_gradients, world=1)[0]
    torch.testing.assert_close(kept, converted, rtol=1e-2, atol=1e-12)
    assert converted.abs().median() < 2**-24, "fp16 would hold these"


def test_gradients_that_adamw_cannot_take_are_refused_before_the_first_step(ranks: RankPool) -> None:
    cases = [("full_shard", "fp32"), ("no_shard", "bf16"), ("no_shard", "fp32")]
    for sharded, reduced, fine in ranks.run(worker.native_adamw, cases, world=2):
        assert "use_fp32_master_params=true" in sharded and "its gradient bfloat16" in sharded
        assert "keep_low_precision_grads=false" in reduced
        assert fine == ""


@pytest.mark.parametrize("config", [{}, {"sharding_strategy": "no_shard"}, {"use_orig_params": False}])
def test_buffers_compute_in_their_dtype_and_are_saved_in_the_original(config: Any, ranks: RankPool) -> None:
    for found in ranks.run(worker.buffers, config, world=2):
        assert found["compute"] == "torch.bfloat16"
        assert {found["saved"], found["streamed"], found["weights"]} == {"torch.float32"}


def test_autocast_stands_in_for_fsdps_own_casting(ranks: RankPool) -> None:
    assert ranks.run(worker.autocast, world=2) == [["torch.bfloat16", "torch.float32"]] * 2


def test_an_overflow_in_fp16_is_skipped_by_all_ranks(ranks: RankPool) -> None:
    for found in ranks.run(parity.overflow, "fsdp", {}, 1, world=2):
        assert found["skipped"] == [0, 1, 1, 1] and found["moved"] == [True, False, True, True]


def test_parameters_are_not_off_loaded_on_a_host_without_accelerator(ranks: RankPool) -> None:
    assert "cpu_offload: FSDP1 needs an accelerator" in ranks.run(worker.offload, world=2)[0]


def test_ignored_modules_that_are_trained_do_not_drift_apart(ranks: RankPool) -> None:
    assert ranks.run(worker.ignored_stay_equal, world=2) == [0.0, 0.0]


@pytest.mark.parametrize("backend", ["fsdp", "fsdp2"])
def test_ignored_modules_compute_in_the_dtype_around_them(backend: str, ranks: RankPool) -> None:
    expected, *found = ranks.run(worker.ignored_in_bf16, backend, [None, "head", "embed", r"blocks\.1", r".*\.mlp\.1"],
                                 world=2)[0]  # fmt: skip
    for losses in found:
        assert losses == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("backend", ["fsdp", "fsdp2"])
def test_an_ignored_module_that_takes_no_part_stays_without_gradient(backend: str, ranks: RankPool) -> None:
    assert ranks.run(worker.ignored_and_idle, backend, world=2) == [True, True]


def test_flat_parameters_have_the_rate_of_all_they_hold_or_are_refused(ranks: RankPool) -> None:
    embed, mixed = ranks.run(worker.flat_rates, [["embed.weight"], ["blocks.1.out.bias"]], world=1)[0]
    blocks = ranks.run(worker.flat_rates, [[]], lr_multipliers={"blocks.0": 3.0}, world=1)[0][0]
    assert set(embed) == {0.01, 1.0} and embed[1.0] == 32 * 16
    assert len(blocks) == 2 and blocks[0.03] == embed[0.01] // 2
    assert "blocks.1.out.bias 1" in mixed and "use_orig_params=true" in mixed


def topology(world: int, **section: Any) -> Topology:
    """The resolved topology of a section."""
    return fsdp1_topology(FsdpConfig.model_validate(section), world)


def test_strategies_say_how_many_copies_there_are() -> None:
    assert topology(4) == topology(4, sharding_strategy="shard_grad_op") == Topology(dp_replicate=1, dp_shard=4)
    assert topology(4, sharding_strategy="no_shard") == Topology(dp_replicate=4, dp_shard=1)
    hybrid = topology(8, sharding_strategy="hybrid_shard", hybrid_shard_size=2)
    assert hybrid == Topology(dp_replicate=4, dp_shard=2)
    split = {"dp_replicate": 4, "dp_shard": 2}
    assert topology(8, sharding_strategy="hybrid_shard", parallelism=split) == topology(8, parallelism=split) == hybrid
    assert sharding_strategy(FsdpConfig(sharding_strategy="shard_grad_op"), topology(4)) == "shard_grad_op"
    assert sharding_strategy(FsdpConfig(), hybrid) == "hybrid_shard"


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"sharding_strategy": "hybrid_shard"}, "requires hybrid_shard_size"),
        ({"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 0}, "requires hybrid_shard_size"),
        ({"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 3}, "must divide the number of ranks: 3 and 4"),
        ({"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 1}, "must both shard and replicate.*use no_shard"),
        ({"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 4}, "both shard and replicate.*use full_shard"),
        ({"sharding_strategy": "no_shard", "parallelism": {"dp_shard": 4}}, "no_shard makes.*parallelism says"),
        ({"hybrid_shard_size": 2}, "only hybrid_shard has it"),
    ],
)
def test_strategies_that_do_not_fit_are_refused(section: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        topology(4, **section)


def test_what_belongs_to_another_engine_is_said() -> None:
    def found(engine: str, **section: Any) -> list[str]:
        return [problem.where for problem in backend_problems(FsdpConfig.model_validate(section), engine)]

    assert found("fsdp", param_offload=True, mixed_precision_policy={"param_dtype": "bf16"}) == [
        "mixed_precision_policy", "param_offload"
    ]  # fmt: skip
    kept = {"mixed_precision": {"keep_low_precision_grads": True}}
    assert found("fsdp2", amp_autocast={"enabled": True}) == ["amp_autocast.enabled"]
    assert found("ddp", **kept) == ["mixed_precision.keep_low_precision_grads"] and found("fsdp", **kept) == []
    assert found("fsdp2", strategy="fsdp") == ["strategy"]
