"""However copies and shards are laid out, the same data give the same losses and weights."""

from __future__ import annotations

from typing import Any

import block_policy
import parity
import pytest
import torch

from plugrl.engines.base import BatchOptions
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.testing.ranks import RankPool

STEPS, WINDOW = 20, 2
LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "ddp4": (4, "ddp", {}),
    "ddp4 by parallelism": (4, "fsdp2", {"parallelism": {}}),
    "fsdp4": (4, "fsdp2", {}),
    "hsdp 2x2": (4, "fsdp2", {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}),
    "hsdp by fsdp_size": (4, "fsdp2", {"fsdp_size": 2}),
    "fsdp2": (2, "fsdp2", {"parallelism": {"dp_shard": -1}, "reshard_after_forward": False}),
    "fsdp2 offloaded": (2, "fsdp2", {"cpu_offload": True}),
    "fsdp2 with modules left whole": (2, "fsdp2", {"ignored_modules": r"blocks\.1\.mlp\..*"}),
    "fsdp1 full_shard": (4, "fsdp", {"sharding_strategy": "full_shard"}),
    "fsdp1 shard_grad_op": (4, "fsdp", {"sharding_strategy": "shard_grad_op"}),
    "fsdp1 no_shard": (2, "fsdp", {"sharding_strategy": "no_shard"}),
    "fsdp1 hybrid_shard 2x2": (4, "fsdp", {"sharding_strategy": "hybrid_shard", "hybrid_shard_size": 2}),
    "fsdp1 by parallelism": (4, "fsdp", {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}),
}


@pytest.fixture(scope="module")
def one_process() -> dict[str, Any]:
    """The same training in this process alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_platform(CpuPlatform()):
        run = parity.train(0, 1, "fsdp2", {}, steps=STEPS, window=WINDOW)
    torch.set_num_threads(threads)
    assert run["layout"] == "single" and run["updates"] == STEPS // WINDOW
    return run


def assert_same_training(run: dict[str, Any], expected: dict[str, Any], rel: float = 1e-5) -> None:
    """Losses, norms and rates to a relative error, weights likewise with an absolute floor for what is near zero."""
    for key in ("losses", "norms", "rates"):
        assert run[key] == pytest.approx(expected[key], rel=rel), key
    assert run["updates"] == expected["updates"]
    assert run["weights"].keys() == expected["weights"].keys()
    for name, tensor in expected["weights"].items():
        found = run["weights"][name]
        torch.testing.assert_close(found, tensor, rtol=rel, atol=2e-6, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_twenty_steps_with_accumulation_and_clipping_agree_with_one_process(
    ranks: RankPool, one_process: dict[str, Any], layout: str
) -> None:
    world, backend, config = LAYOUTS[layout]
    runs = ranks.run(parity.train, backend, config, steps=STEPS, window=WINDOW, world=world)
    expected_layout = {"ddp4": "ddp", "ddp4 by parallelism": "ddp"}.get(layout, backend)
    assert {run["layout"] for run in runs} == {expected_layout}
    assert max(one_process["norms"]) > parity.OPTIM["clip_grad"], "nothing was clipped"
    for run in runs:
        assert_same_training(run, one_process)


@pytest.mark.parametrize("window", [2, 3])
def test_the_same_batch_again_in_a_window_leaves_the_gradient_as_it_was(window: int) -> None:
    """Compared by the norm before clipping, which would hide a factor."""
    with use_platform(CpuPlatform()):
        once, again = parity.make_engine("ddp"), parity.make_engine("ddp")
        data = parity.share_of(0, 1, seed=0)
        with once.train_mode():
            expected = float(once.train_batch(data, block_policy.token_mean_loss).metrics["grad_norm"])
        for index in range(window):
            options = BatchOptions(window=window, window_index=index)
            with again.train_mode(zero_grad_on_exit=options.closes_window):
                result = again.train_batch(data, block_policy.token_mean_loss, options)
            assert ("grad_norm" in result.metrics) == options.closes_window
    assert float(result.metrics["grad_norm"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "layout", ["hsdp 2x2", "fsdp2 offloaded", "fsdp1 full_shard", "fsdp1 no_shard", "fsdp1 flat"]
)
def test_validation_between_batches_of_a_window_costs_no_gradient_even_where_it_fails(
    ranks: RankPool, layout: str
) -> None:
    world, backend, config = LAYOUTS.get(layout, (2, "fsdp", {"use_orig_params": False}))
    for plain, *others in ranks.run(parity.validation_in_a_window, backend, config, world=world):
        for other in others:
            assert other["norm"] == plain["norm"]
            for name, tensor in plain["weights"].items():
                assert torch.equal(other["weights"][name], tensor), name


def test_a_window_is_one_update_on_the_mean_of_its_batches(one_process: dict[str, Any]) -> None:
    with use_platform(CpuPlatform()):
        without = parity.train(0, 1, "ddp", {}, steps=STEPS, window=1)
        micro = parity.train(0, 1, "ddp", {}, steps=STEPS, window=WINDOW, micro=3)
    assert without["updates"] == STEPS and without["losses"][:1] == pytest.approx(one_process["losses"][:1])
    assert without["losses"][5:] != pytest.approx(one_process["losses"][5:], rel=1e-3)
    assert without["rates"] == one_process["rates"], "the schedule counts loop steps, whatever the window"
    assert_same_training(micro, one_process)


@pytest.mark.parametrize(
    ("world", "backend", "config"),
    [
        (2, "ddp", {}),
        (2, "fsdp2", {}),
        (4, "fsdp2", {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}),
    ],
    ids=["ddp", "fsdp2", "hsdp"],
)
def test_an_overflow_on_one_rank_is_skipped_by_all_and_shrinks_the_scale(
    ranks: RankPool, world: int, backend: str, config: dict[str, Any]
) -> None:
    for run in ranks.run(parity.overflow, backend, config, world - 1, world=world):
        assert run["moved"] == [True, False, True, True] and run["skipped"] == [0, 1, 1, 1]
        assert run["scales"] == [1024.0, 512.0, 512.0, 1024.0]
        assert run["dtypes"] == ["torch.float32"] and run["finite"]
        assert run["state"] == {
            "scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2, "_growth_tracker": 0
        }  # fmt: skip


@pytest.mark.parametrize(
    ("world", "backend", "config", "parts"),
    [
        (4, "fsdp2", {"parallelism": {"dp_replicate": 2, "dp_shard": 4}}, ["dp_replicate=2 x dp_shard=4", "= 8"]),
        (4, "fsdp2", {"parallelism": {"dp_replicate": 2}}, ["dp_replicate=2 x dp_shard=1", "give dp_shard=-1"]),
        (4, "fsdp2", {"parallelism": {"dp_replicate": 3, "dp_shard": -1}}, ["4 processes", "dp_replicate=3"]),
        (4, "ddp", {"parallelism": {"dp_shard": -1}}, ["parallelism.dp_shard: strategy ddp does not shard", "is 4"]),
        (4, "fsdp2", {"fsdp_size": 3}, ["fsdp_config.fsdp_size: 3 ranks per copy do not divide 4"]),
        (2, "fsdp2", {"ignored_modules": "mlp"}, ["ignored_modules: 'mlp' matches no module", ".*", "blocks.0.mlp"]),
    ],
)
def test_layouts_that_do_not_fit_are_refused_on_every_rank(
    ranks: RankPool, world: int, backend: str, config: dict[str, Any], parts: list[str]
) -> None:
    for text in ranks.run(parity.refused, backend, config, world=world):
        for part in parts:
            assert part in text


@pytest.mark.parametrize("backend", ["fsdp2", "fsdp"])
def test_a_unit_whose_forward_never_runs_is_named_once(ranks: RankPool, backend: str) -> None:
    for messages in ranks.run(parity.idle_unit_warnings, backend, world=2):
        (message,) = messages
        assert "forward of 1 units never ran" in message and "(spare)" in message
