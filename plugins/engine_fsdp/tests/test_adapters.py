"""A LoRA adapter trains alike under every layout, alone is saved, and goes on under any other layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plugrl.engines.registry import EngineRegistry
from plugrl.errors import ConfigError
from plugrl.models import get_model
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.testing.ranks import RankPool

pytest.importorskip("plugrl_models_hf")
pytest.importorskip("peft")

import adapters  # noqa: E402  (asks for the packages above)

HSDP = {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}
WRITERS: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "1": (1, "ddp", {}, {}),
    "ddp4": (4, "ddp", {}, {}),
    "fsdp4": (4, "fsdp2", {}, {"format": "dcp"}),
    "hsdp2x2": (4, "fsdp2", HSDP, {"format": "safetensors_dcp"}),
}
READERS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "1": (1, "fsdp2", {}),
    "ddp2": (2, "ddp", {}),
    "fsdp2": (2, "fsdp2", {}),
    "hsdp2x2": (4, "fsdp2", HSDP),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """This process as one rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_platform(CpuPlatform()):
        yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Exchange:
    """What each writer saved where and did afterwards, and what each reader made of it."""

    folders: dict[str, Path]
    wrote: dict[str, dict[str, Any]]
    read: dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def exchange(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    """Every writer's checkpoint in every reader's hands."""
    root = tmp_path_factory.mktemp("adapters")
    folders = {name: root / name / f"{adapters.STEPS:06d}" for name in WRITERS}
    wrote: dict[str, Any] = {}
    read: dict[str, Any] = {}
    known: list[str] = []
    for world in (1, 4, 2):
        writers = {name: rest for name, (size, *rest) in WRITERS.items() if size == world}
        readers = {name: rest for name, (size, *rest) in READERS.items() if size == world}
        arguments = (writers, {} if world == 1 else readers, str(root), [str(folders[name]) for name in known])
        done = adapters.exchange(0, 1, *arguments) if world == 1 else ranks.run(
            adapters.exchange, *arguments, world=world, timeout_s=200)[0]  # fmt: skip
        known += writers
        wrote |= done["wrote"]
        read |= done["read"]
    read["1"] = adapters.read(0, 1, *READERS["1"][1:], [str(folders[name]) for name in known])
    return Exchange(folders, wrote, {name: dict(zip(known, results, strict=True)) for name, results in read.items()})


def _assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-5, atol=1e-6), name


def test_every_layout_trains_the_same_adapter_and_leaves_the_base_alone(exchange: Exchange) -> None:
    one = exchange.wrote["1"]
    start = get_model({**adapters.MODEL, "lora": None}, "fp32").state_dict()
    for name, run in exchange.wrote.items():
        assert run["seen"] == pytest.approx(one["seen"], rel=1e-5), name
        _assert_close(run["end"], one["end"])
        # Under sharding a rank holds a part of the frozen weights too.
        assert set(run["spread"].values()) == {name in ("fsdp4", "hsdp2x2")}
    merged = {name.removeprefix("merged/"): t for name, t in one["end"].items() if name.startswith("merged/")}
    assert {f"model.{name}" for name in merged} == start.keys()
    moved = {name for name, tensor in merged.items() if not torch.equal(tensor, start[f"model.{name}"])}
    assert moved == {name for name in merged if "_proj" in name or "lm_head" in name}
    # The optimizer holds nothing of the frozen base.
    assert all(".lora_" in name or "lm_head" in name for name in one["end"] if not name.startswith("merged/"))


@pytest.mark.parametrize("writer", WRITERS)
def test_only_the_adapter_is_saved_in_every_format(exchange: Exchange, writer: str) -> None:
    pretrained, run = exchange.folders[writer] / "pretrained_model", exchange.wrote[writer]
    files = {path.name for path in pretrained.iterdir()}
    assert "adapter_config.json" in files and not any(name.startswith("model") for name in files)
    assert ("adapter_model.safetensors" in files) == (writer != "fsdp4")
    assert ("pytorch_model_fsdp_0" in files) == (writer in ("fsdp4", "hsdp2x2"))
    assert json.loads((pretrained / "adapter_config.json").read_text())["r"] == adapters.LORA["rank"]
    saved = {name.removeprefix("saved/"): t for name, t in run["saved"].items() if name.startswith("saved/")}
    assert saved and all(name.startswith("base_model.model.") for name in saved)
    if "adapter_model.safetensors" in files:
        stored = load_file(pretrained / "adapter_model.safetensors")
        assert stored.keys() == saved.keys() and all(torch.equal(stored[name], t) for name, t in saved.items())
        again = get_model({**adapters.MODEL, "lora": {"path": str(pretrained)}}, "fp32")
        own = {again.published_name(name): tensor for name, tensor in again.state_dict().items()}
        assert all(torch.equal(own[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize("reader", READERS)
def test_any_layout_goes_on_with_it(exchange: Exchange, reader: str) -> None:
    for writer, result in exchange.read[reader].items():
        run = exchange.wrote[writer]
        assert result["loaded"].keys() == run["saved"].keys()
        assert all(torch.equal(result["loaded"][name], tensor) for name, tensor in run["saved"].items()), writer
        assert result["seen"] == pytest.approx(run["seen"][len(result["seen"]) :], rel=1e-5), writer
        _assert_close(result["end"], run["end"])


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_on_a_bf16_base_what_is_trained_is_fp32_and_the_adapter_can_be_left_out(ranks: RankPool, backend: str) -> None:
    for run in ranks.run(adapters.half, backend, {}, world=2, timeout_s=120):
        assert run["dtypes"] == {(True, torch.float32), (False, torch.bfloat16)}
        assert run["saved"] == {torch.float32} and run["rank"] == adapters.LORA["rank"]
        assert all(torch.isfinite(torch.tensor(run["seen"])))
        assert torch.equal(run["changed"], run["again"])
        # In bf16, and the base alone is computed without casts.
        assert torch.allclose(run["frozen"], run["base"], atol=0.03)
        assert (run["changed"] - run["frozen"]).abs().max() > 0.1
        assert run["names"] and all(name.startswith("base_model.model.") for name in run["names"])


def test_a_bf16_base_in_fp32_compute_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model_dtype.*accelerator\.mixed_precision"):
        adapters.make_engine("ddp", {"model_dtype": "bf16"})


def test_the_printed_plan_has_the_precision_that_an_adapter_trains_in() -> None:
    engine_class = EngineRegistry.get_engine_cls("language_model", "fsdp2")
    table = engine_class.wrap_plan(adapters.MODEL, {"dtype": "bf16", "model_dtype": "bf16"}, {}, 2)
    assert {row[3] for row in table.rows} == {"bf16, reduce fp32"}
    with pytest.raises(ConfigError, match="model_dtype"):
        engine_class.wrap_plan(adapters.MODEL, {"dtype": "fp32", "model_dtype": "bf16"}, {}, 2)
