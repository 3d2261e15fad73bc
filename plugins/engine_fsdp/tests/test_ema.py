"""Averaged weights: the schedule, updates that count, every layout alike, and no trace of validation."""

from __future__ import annotations

from typing import Any

import ema_ranks
import pytest
import torch
from parity import make_engine
from pydantic import ValidationError

from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.testing.ranks import RankPool
from plugrl_engine_fsdp import residency
from plugrl_engine_fsdp.config.ema import EmaConfig
from plugrl_engine_fsdp.ema import Ema


def test_the_schedule_has_the_values_of_its_source() -> None:
    """1 - (1 + t) ** -0.75 with t = updates - 1, bounded; diffusers' EMAModel gives the same."""
    config = EmaConfig(enable=True, max_decay=0.7)
    expected = [0.0, 1 - 2**-0.75, 1 - 3**-0.75, 1 - 4**-0.75, 0.7]
    assert [config.decay_at(updates) for updates in range(1, 6)] == pytest.approx(expected)
    late = EmaConfig(enable=True, update_after_step=3, min_decay=0.5)
    assert [late.decay_at(updates) for updates in (1, 3, 4, 5)] == [0.0, 0.0, 0.0, 0.5]
    assert [EmaConfig(enable=True, decay=0.9).decay_at(updates) for updates in (1, 2, 9)] == [0.0, 0.9, 0.9]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decay": 0.9, "max_decay": 0.5}, "decay is constant and leaves no schedule to max_decay"),
        ({"min_decay": 0.9, "max_decay": 0.5}, "min_decay 0.9 is more than max_decay 0.5"),
        ({"decay": 1.5}, "less than or equal to 1"),
        ({"inv_gamma": 0}, "greater than 0"),
        ({"decya": 0.5}, "Extra inputs"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EmaConfig(**values)  # type: ignore[arg-type]
    assert EmaConfig(**EmaConfig(decay=0.9).model_dump()).decay == 0.9, "a stored configuration loads again"


def test_the_average_of_known_numbers() -> None:
    weight = torch.nn.Parameter(torch.tensor([0.0, 8.0], dtype=torch.bfloat16))
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    ema = Ema(EmaConfig(enable=True, decay=0.5), {"weight": weight, "frozen": frozen}, ["weight"])
    for value in (4.0, 8.0):
        with torch.no_grad():
            weight.fill_(value)
        ema.update({"weight": weight, "frozen": frozen})
    assert ema.updates == 2 and ema.shadow["weight"].tolist() == [6.0, 6.0]
    assert ema.shadow["weight"].dtype == torch.float32 and "frozen" not in ema.shadow
    assert ema.weights({"weight": weight, "frozen": frozen})["frozen"] is frozen


def test_averages_move_with_the_state_of_the_optimizer() -> None:
    """They are as large as the weights, and only updates need them."""
    with use_platform(CpuPlatform()):
        engine = make_engine("ddp", {"ema": {"enable": True}})
        engine.device = torch.device("meta")  # stands for a device that is not the host
        residency.load(engine, model=False, optimizer=True)
        assert {average.device.type for average in engine.ema.shadow.values()} == {"meta"}
        assert {parameter.device.type for parameter in engine.module.parameters()} == {"cpu"}


@pytest.fixture(scope="module")
def alone(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What one process without sharding gives."""
    folder = tmp_path_factory.mktemp("alone")
    answer: dict[str, object] = ranks.run(ema_ranks.train, "ddp", {}, str(folder), world=1)[0]
    return answer


LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "fsdp2": (2, "fsdp2", {}),
    "ddp": (2, "ddp", {}),
    "fsdp": (2, "fsdp", {}),
    "hsdp 2x2": (4, "fsdp2", {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}),
    "off-loaded": (2, "fsdp2", {"param_offload": True, "optimizer_offload": True}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_averages_alike_and_goes_on(
    ranks: RankPool, tmp_path: object, alone: dict[str, object], layout: str
) -> None:
    """Four batches in windows of two and one skipped update: two updates count; the resumed average is the same."""
    world, strategy, config = LAYOUTS[layout]
    found = ranks.run(ema_ranks.train, strategy, config, str(tmp_path), world=world)
    assert found[0]["updates"] == alone["updates"] == 2
    assert found[0]["resumed_updates"] == 2 and found[0]["resumed"] == found[0]["average"]
    assert found[0]["restored"], "validation leaves the weights bit for bit as they were"
    assert found[0]["validated_with"] == pytest.approx(found[0]["average"], abs=1e-6)
    assert found[0]["average"] == pytest.approx(alone["average"], rel=1e-4, abs=1e-5)
    assert found[0]["missing"] == 0 and "starts anew" in found[0]["said"]
