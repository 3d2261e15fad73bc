"""What one layout saves, every other loads: bit for bit, and goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parity
import pytest
import resharding
import torch
from safetensors.torch import load_file

from plugrl.checkpoints import CheckpointStore, verify
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.testing.ranks import RankPool

HSDP = {"parallelism": {"dp_replicate": 2, "dp_shard": 2}}
WRITERS: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "1": (1, "ddp", {}, {}),
    "ddp4": (4, "ddp", {}, {"async_save": True}),
    "fsdp4": (4, "fsdp2", {}, {"format": "dcp"}),
    "hsdp2x2": (4, "fsdp2", HSDP, {"format": "safetensors_dcp", "async_save": True}),
    "fsdp4 gathered": (4, "fsdp2", {}, {"format": "safetensors"}),
}
READERS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "1": (1, "fsdp2", {}),
    "ddp2": (2, "ddp", {}),
    "fsdp2": (2, "fsdp2", {}),
    "hsdp2x2": (4, "fsdp2", HSDP),
}
SIDE = ["rng_state.safetensors", "scheduler_state.json", "training_step.json"]
MODEL = ["pretrained_model/model.safetensors"]
FILES = {
    "1": [*MODEL, "training_state/optimizer_state.safetensors"],
    "ddp4": [*MODEL, "training_state/optimizer_state.safetensors"],
    "fsdp4": [f"pretrained_model/pytorch_model_fsdp_0/__{rank}_0.distcp" for rank in range(4)],
    "hsdp2x2": [*MODEL, *(f"pretrained_model/pytorch_model_fsdp_0/__{rank}_0.distcp" for rank in range(4))],
    "fsdp4 gathered": MODEL,
}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """This process as one rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_platform(CpuPlatform()):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def written(
    ranks: RankPool, one_thread: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """For each writer, the folder of its checkpoint and what it held and did afterwards."""
    found = {}
    for name, (world, backend, config, checkpoint) in WRITERS.items():
        root = tmp_path_factory.mktemp("checkpoints")
        arguments = (backend, config, checkpoint, str(root))
        result = resharding.write(0, 1, *arguments) if world == 1 else ranks.run(
            resharding.write, *arguments, world=world)[0]  # fmt: skip
        found[name] = (root / "000002", result)
    return found


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same names and bits."""
    assert found.keys() == expected.keys() and expected
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def weights_in(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights among a whole state."""
    prefix = "weight/"
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_are_those_of_the_format_and_of_the_layout(
    written: dict[str, tuple[Path, dict[str, Any]]], writer: str
) -> None:
    folder, _ = written[writer]
    shards = [path.replace("__0_0.distcp", ".metadata") for path in FILES[writer] if path.endswith("__0_0.distcp")]
    optimizer = [] if WRITERS[writer][1] == "ddp" else [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]
    expected = {
        "manifest.json",
        *FILES[writer],
        *shards,
        *(f"training_state/{name}" for name in (*SIDE, "optimizer_param_groups.json")),
        *(f"training_state/optimizer_0/{name}" for name in optimizer),
    }
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == expected
    assert sorted(path.name for path in folder.parent.iterdir()) == ["000002", "last"]
    assert os.readlink(folder.parent / "last") == "000002"
    verify(folder)


@pytest.mark.parametrize("reader", READERS)
def test_any_layout_goes_on_from_any_other_bit_for_bit(
    ranks: RankPool, written: dict[str, tuple[Path, dict[str, Any]]], reader: str
) -> None:
    world, backend, config = READERS[reader]
    folders = [str(folder) for folder, _ in written.values()]
    results = (
        [resharding.read(0, 1, backend, config, folders)]
        if world == 1
        else ranks.run(resharding.read, backend, config, folders, world=world)
    )
    for index, (writer, (_, expected)) in enumerate(written.items()):
        found = results[0][index]
        assert_equal(found["loaded"], expected["saved"])
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5), writer
        for name, tensor in expected["end"].items():
            torch.testing.assert_close(found["end"][name], tensor, rtol=1e-4, atol=2e-6)
        assert all(rank[index]["updates"] == resharding.BEFORE + resharding.AFTER for rank in results)


def test_layouts_store_the_same_bits(written: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    both = written["hsdp2x2"][0]
    weights = load_file(both / "pretrained_model/model.safetensors")
    saved = written["hsdp2x2"][1]["saved"]
    assert_equal(weights, weights_in(saved))
    # Of equal blocks one rank stores each, by turns: all four files hold some.
    sizes = [path.stat().st_size for path in (both / "pretrained_model/pytorch_model_fsdp_0").glob("*.distcp")]
    assert len(sizes) == 4 and max(sizes) < 2 * min(sizes)


def test_torch_reads_the_shards(written: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    from torch.distributed import checkpoint as dcp

    folder, expected = written["fsdp4"]
    weights = weights_in(expected["saved"])
    targets = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({"model": targets}, checkpoint_id=folder / "pretrained_model/pytorch_model_fsdp_0", no_dist=True)
    assert_equal(targets, weights)


def test_the_record_of_a_step(written: dict[str, tuple[Path, dict[str, Any]]]) -> None:
    record = json.loads((written["hsdp2x2"][0] / "training_state/training_step.json").read_text())
    assert record["step"] == record["optimizer_updates"] == resharding.BEFORE
    assert record["dp_world_size"] == 4 and record["batch_size"] == 4 and record["grad_accum_steps"] == 1
    assert record["parallelism"] == {"dp_replicate": 2, "dp_shard": 2, "ring_degree": 1, "ulysses_degree": 1}
    assert record["precision"] == "float32" and record["strategy"] == "fsdp2" and record["format_version"] == 2
    assert {"epoch", "offset", "samples_seen", "tracker_run_id"} <= record.keys()


def test_what_differs_is_said_once_and_nothing_when_nothing_does(
    ranks: RankPool, written: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    folder = str(written["hsdp2x2"][0])
    same = ranks.run(resharding.read, "fsdp2", HSDP, [folder], world=4)
    assert all(rank[0]["warnings"] == [] for rank in same)
    first, second = (rank[0]["warnings"] for rank in ranks.run(resharding.read, "fsdp2", {}, [folder], 4, world=2))
    assert second == [] and len(first) == 1
    for change in ("dp_world_size: 4 -> 2", "grad_accum_steps: 1 -> 4", "dp_replicate: 2 -> 1", "batch_size: 4 -> 8"):
        assert change in first[0]
    assert "precision" not in first[0] and "optim" not in first[0]


def test_ranks_without_a_stored_random_state_are_seeded_apart(
    ranks: RankPool, written: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    results = ranks.run(resharding.read, "fsdp2", {}, [str(written["1"][0])], world=2)
    assert "no random state for rank 1, since 1 ranks saved it" in "".join(results[1][0]["warnings"])


def test_names_and_shapes_are_compared_before_anything_is_loaded(
    ranks: RankPool, one_thread: None, written: dict[str, tuple[Path, dict[str, Any]]]
) -> None:
    for writer in ("1", "fsdp4"):
        folder = str(written[writer][0])
        deeper = resharding.refused(0, 1, "ddp", {}, folder, blocks=4)
        assert "does not fit the model: 12 names missing (model.blocks.3." in deeper
        shallower = resharding.refused(0, 1, "ddp", {}, folder, blocks=2)
        assert "12 names unexpected (model.blocks.2." in shallower
        wider = resharding.refused(0, 1, "ddp", {}, folder, width=32)
        assert "model.blocks.0.mlp.3.bias has shape [16], expected [32]; 32 more shapes differ" in wider
    for text in ranks.run(resharding.refused, "fsdp2", {}, folder, world=2, blocks=4):
        assert text.startswith(f"loading {folder} failed. rank 0, 1: CheckpointError") and "12 names missing" in text


def test_what_is_missing_is_named_on_every_rank(
    ranks: RankPool, one_thread: None, written: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "000002"
    shutil.copytree(written["fsdp4"][0], folder)
    (folder / "pretrained_model/pytorch_model_fsdp_0/__1_0.distcp").unlink()
    assert "__1_0.distcp cannot be read" in resharding.refused(0, 1, "ddp", {}, str(folder))
    shutil.rmtree(folder / "pretrained_model/pytorch_model_fsdp_0")
    for text in ranks.run(resharding.refused, "fsdp2", {}, str(folder), world=2):
        assert f"plugrl checkpoint convert {folder}" in text and "neither model.safetensors" in text
    shutil.rmtree(folder / "training_state")
    for text in ranks.run(resharding.refused, "fsdp2", {}, str(folder), world=2):
        assert "holds no training_state/" in text and "model.path" in text


def test_a_failure_on_one_rank_ends_the_save_of_all(ranks: RankPool, tmp_path: Path) -> None:
    for texts in ranks.run(resharding.failing_save, str(tmp_path), 1, world=2):
        assert len(texts) == 1 and "rank 1: OSError: [Errno 28] No space left on device" in texts[0]
    assert (tmp_path / "2/pretrained_model/pytorch_model_fsdp_0/.metadata").is_file()


def test_shards_need_a_sharded_run(ranks: RankPool, one_thread: None) -> None:
    for text in (
        resharding.refused_at_start(0, 1, "fsdp2", {"parallelism": {"dp_shard": -1}}, {"format": "dcp"}),
        *ranks.run(resharding.refused_at_start, "ddp", {}, {"format": "safetensors_dcp"}, world=2),
    ):
        assert text.startswith("checkpoint_format: ") and "dp_replicate=" in text and "dp_shard=1" in text


def test_masters_and_loss_scale_of_a_half_precision_run(ranks: RankPool, tmp_path: Path) -> None:
    run = ranks.run(resharding.half_precision, str(tmp_path), world=2)[0]
    folder = tmp_path / "000003"
    stored = load_file(folder / "pretrained_model/model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert_equal(stored, weights_in(run["saved"]))
    assert_equal(run["loaded"], run["saved"])
    assert run["scale"] == json.loads((folder / "training_state/scaler_state.json").read_text())
    assert run["scale"]["scale"] == 1024.0 and run["scale"]["_growth_tracker"] == 1
    record = json.loads((folder / "training_state/training_step.json").read_text())
    assert record["precision"] == "float16"


def test_an_optimizer_without_state(one_thread: None, tmp_path: Path) -> None:
    engine = resharding.make_engine("ddp", {})
    resharding.save(engine, str(tmp_path), 1, 0)
    other = resharding.make_engine("ddp", {})
    resharding.train(other, 0, 1, 0, 1)
    other.load_checkpoint(str(tmp_path / "000001"))
    assert not other.optimizer.state
    assert_equal(resharding.state_of(other), resharding.state_of(engine))


def test_the_old_name_of_the_record_and_of_its_keys(one_thread: None, tmp_path: Path) -> None:
    engine = resharding.make_engine("ddp", {})
    resharding.train(engine, 0, 1, 0, 1)
    resharding.save(engine, str(tmp_path), 1, 0, batch_size=parity.GLOBAL_ROWS)
    training = tmp_path / "000001/training_state"
    record = json.loads((training / "training_step.json").read_text())
    record["num_processes"] = record.pop("dp_world_size") + 7
    (training / "engine_state.json").write_text(json.dumps(record))
    (training / "training_step.json").unlink()
    (found,) = resharding.read(0, 1, "ddp", {}, [str(tmp_path / "000001")])
    assert len(found["warnings"]) == 1 and "dp_world_size: 8 -> 1" in found["warnings"][0]


def test_state_follows_names_and_settings_follow_the_run(one_thread: None, tmp_path: Path) -> None:
    engine = resharding.make_engine("ddp", {})
    resharding.train(engine, 0, 1, 0, 1)
    resharding.save(engine, str(tmp_path), 1, 0)
    expected = resharding.state_of(engine)
    other = resharding.make_engine("ddp", {}, optim={**parity.OPTIM, "weight_decay": 0.5})
    other.optimizer.param_groups[0]["params"].reverse()
    other.load_checkpoint(str(tmp_path / "000001"))
    assert_equal(resharding.state_of(other), expected)
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.5


def test_a_parameter_without_a_gradient_has_no_state_afterwards(one_thread: None, tmp_path: Path) -> None:
    engine = resharding.make_engine("ddp", {})
    resharding.train(engine, 0, 1, 0, 1)
    parameter = engine.module.blocks[0].out.bias
    del engine.optimizer.state[parameter]
    resharding.save(engine, str(tmp_path), 1, 0)
    other = resharding.make_engine("ddp", {})
    resharding.train(other, 0, 1, 0, 1)
    other.load_checkpoint(str(tmp_path / "000001"))
    assert other.module.blocks[0].out.bias not in other.optimizer.state
    assert_equal(resharding.state_of(other), resharding.state_of(engine))


def test_a_snapshot_is_of_the_moment_of_the_save(one_thread: None, tmp_path: Path) -> None:
    engine = resharding.make_engine("ddp", {}, {"async_save": True})
    resharding.train(engine, 0, 1, 0, 1)
    expected = resharding.state_of(engine)
    store = CheckpointStore(tmp_path)
    with store.write(1) as folder:
        engine.save_checkpoint(str(folder), 1)
    resharding.train(engine, 0, 1, 1, 3)
    store.finish()
    other = resharding.make_engine("fsdp2", {})
    other.load_checkpoint(str(store.path_of(1)))
    assert_equal(resharding.state_of(other), expected)
    verify(store.path_of(1))
