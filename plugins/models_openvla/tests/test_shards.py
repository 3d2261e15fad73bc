"""What an unsharded policy did is recomputed by ranks that each hold a part of the weights."""

from __future__ import annotations

import pytest
import shards

from plugrl.testing.ranks import RankPool

ADAPTER = {"lora": {"rank": 4, "init": "random"}}
LAYOUTS = {
    "fsdp2": ("fsdp2", {}, {}),
    "fsdp2 with an adapter": ("fsdp2", {}, ADAPTER),
    "fsdp2 with checkpointing": ("fsdp2", {}, {"enable_gradient_checkpointing": True}),
    "ddp": ("ddp", {}, {}),
    "fsdp1": ("fsdp", {"use_orig_params": True}, {}),
}
QUICK = {"fsdp2 with an adapter"}


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LAYOUTS]
)
def test_the_first_ratio_is_one_on_two_ranks(ranks: RankPool, layout: str) -> None:
    backend, config, model = LAYOUTS[layout]
    for found in ranks.run(shards.recompute, backend, config, model, world=2, timeout_s=120):
        assert found["furthest"][0] < 1e-5 < 1e-4 < found["furthest"][1], found
        assert found["norm"] > 0
        assert (found["sharded"] > 0) == backend.startswith("fsdp2"), found["sharded"]
