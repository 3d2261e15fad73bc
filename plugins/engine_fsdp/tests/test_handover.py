"""The state of a trainer goes to another number of ranks and another layout, to the bit, and the losses go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from plugrl.errors import CheckpointError
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform

pytest.importorskip("plugrl_models_hf")
pytest.importorskip("peft")

import handover_ranks  # noqa: E402  (asks for the packages above)

EMA = {"ema": {"enable": True, "decay": 0.9}}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """This process as one rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_platform(CpuPlatform()):
        yield
    torch.set_num_threads(threads)


def run(ranks: Any, world: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    if world == 1:
        return handover_ranks.go_on(0, 1, *args, **kwargs)
    found: dict[str, Any] = ranks.run(handover_ranks.go_on, *args, world=world, **kwargs)[0]
    return found


@pytest.mark.parametrize(
    ("config", "adapter", "chain"),
    [
        (EMA, False, [(1, "fsdp2"), (2, "fsdp2"), (1, "ddp")]),
        ({}, True, [(2, "ddp"), (1, "ddp"), (2, "fsdp2")]),
    ],
)
def test_a_chain_of_layouts_is_one_training(ranks, config, adapter, chain):
    state, losses = None, []
    for index, (world, backend) in enumerate(chain):
        found = run(ranks, world, backend, config, state, 2 * index, 2 * index + 2, adapter=adapter)
        if state is not None:
            assert handover_ranks.same_state(found["begun"], state) == []
        state, losses = found["ended"], losses + found["losses"]
    whole = run(ranks, 1, "ddp", config, None, 0, 2 * len(chain), adapter=adapter)
    assert losses == pytest.approx(whole["losses"], rel=1e-5)
    moments = [name for name in state[0] if name.startswith("optimizer/exp_avg_sq/")]
    assert moments and all(state[0][name].any() for name in moments)
    assert state[1]["updates"] == 2 * len(chain)


def test_the_random_state_goes_along_and_a_state_of_another_model_is_refused(ranks):
    first = handover_ranks.go_on(0, 1, "ddp", {}, None, 0, 1)
    once, again = (handover_ranks.go_on(0, 1, "ddp", {}, first["ended"], 1, 2) for _ in range(2))
    assert handover_ranks.same_state(once["begun"], first["ended"], random=True) == []
    assert torch.equal(once["random"], again["random"])
    tensors, values = first["ended"]
    lacking = {name: tensor for name, tensor in tensors.items() if name != "model/lm_head.weight"}
    with pytest.raises(CheckpointError, match="the state that was handed over does not fit the model.*lm_head.weight"):
        handover_ranks.go_on(0, 1, "ddp", {}, (lacking, values), 1, 2)
