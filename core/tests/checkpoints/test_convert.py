"""Shards become one file with the same names, types and bits, and a checkpoint is whole at every moment of it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.checkpoint.metadata import MetadataIndex  # noqa: E402

from plugrl.checkpoints import CheckpointStore, Manifest, verify  # noqa: E402
from plugrl.checkpoints.convert import convert, gather_if_needed  # noqa: E402
from plugrl.checkpoints.description import describe  # noqa: E402
from plugrl.checkpoints.parts import Part, deliver  # noqa: E402
from plugrl.checkpoints.publish import push_to_hub  # noqa: E402
from plugrl.checkpoints.reading import open_weights  # noqa: E402
from plugrl.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec  # noqa: E402
from plugrl.checkpoints.shards import ShardSource, ShardWriter, write_index  # noqa: E402
from plugrl.checkpoints.unpickling import read_index  # noqa: E402
from plugrl.cli.app import run  # noqa: E402
from plugrl.errors import CheckpointError, MissingDependency  # noqa: E402

TENSORS = {
    "block.weight": torch.arange(24.0).reshape(6, 4),
    "block.bias": torch.arange(5, dtype=torch.bfloat16),
    "embed.weight": torch.arange(12, dtype=torch.float16).reshape(3, 4),
    "steps": torch.tensor(7),
    "empty": torch.zeros(0, 3),
}


def write_shards(folder: Path, world: int = 2) -> None:
    """Write TENSORS as ``world`` ranks would: rows of each shared out."""
    writers = [ShardWriter(folder, rank) for rank in range(world)]
    for name, tensor in TENSORS.items():
        if tensor.dim() == 0:
            writers[0].add(f"model.{name}", tensor, TensorSpec.of(tensor), ())
            continue
        start = 0
        for writer, block in zip(writers, tensor.tensor_split(world), strict=True):
            if block.numel() or (not tensor.numel() and writer is writers[0]):
                writer.add(f"model.{name}", block, TensorSpec.of(tensor), (start, 0)[: tensor.dim()])
            start += block.shape[0]
    for writer in writers:
        writer.close()
    write_index(folder, [writer.notes() for writer in writers], {f"model.{name}": ("model", name) for name in TENSORS})


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A checkpoint that holds shards alone."""
    store = CheckpointStore(tmp_path / "checkpoints")
    with store.write(3) as folder:
        write_shards(folder / "pretrained_model" / "pytorch_model_fsdp_0")
        (folder / "pretrained_model" / "config.json").write_text("{}")
        (folder / "training_state").mkdir()
        (folder / "training_state" / "training_step.json").write_text(json.dumps({"step": 3, "dp_world_size": 2}))
        deliver(folder, "rank0", Part(ties={"head.weight": "embed.weight"}))
    return store.path_of(3)


@pytest.mark.parametrize("part", ["", "pretrained_model"])
def test_same_names_types_and_bits(step: Path, part: str) -> None:
    path = convert(step / part)
    assert path == step / "pretrained_model" / "model.safetensors"
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    with safe_open(path, "pt") as handle:
        assert handle.metadata() == {"format": "pt", "tied.head.weight": "embed.weight"}
    assert "pretrained_model/model.safetensors" in verify(step).files
    assert (step / "pretrained_model/pytorch_model_fsdp_0/.metadata").is_file()


def test_shards_are_removed_after_success_only(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SafetensorsWriter.add

    def spoiled(self: SafetensorsWriter, name: str, tensor: Any) -> None:
        if name == "embed.weight":
            raise OSError(28, "No space left on device")
        original(self, name, tensor)

    monkeypatch.setattr(SafetensorsWriter, "add", spoiled)
    with pytest.raises(OSError, match="No space"):
        convert(step, delete_shards=True)
    assert not list((step / "pretrained_model").glob("*.safetensors*")) and verify(step)
    monkeypatch.undo()
    convert(step, delete_shards=True)
    assert not (step / "pretrained_model/pytorch_model_fsdp_0").exists() and verify(step)
    with pytest.raises(CheckpointError, match=r"pytorch_model_fsdp_0 holds no index.*dcp and safetensors_dcp"):
        convert(step)


@pytest.mark.parametrize("call", range(6))
def test_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(
    step: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The file that the run itself gathered is replaced by one with other bytes; then the shards go."""
    target, calls = step / "pretrained_model" / "model.safetensors", [0]
    save_file(TENSORS, target, {"format": "pt", "by": "another writer"})
    manifest = Manifest.load(step)
    Manifest.of(step, step=3, sequence=manifest.sequence, ties=manifest.ties).save(step)
    verify(step)

    def killing(real: Any) -> Any:
        def do(*args: Any, **keywords: Any) -> Any:
            calls[0] += 1
            if calls[0] > call:
                raise KeyboardInterrupt
            return real(*args, **keywords)

        return do

    with monkeypatch.context() as patched:
        patched.setattr("plugrl.checkpoints.convert.os.replace", killing(os.replace))
        patched.setattr("plugrl.checkpoints.convert.Path.unlink", killing(Path.unlink))
        patched.setattr("plugrl.checkpoints.convert.shutil.rmtree", lambda path: (path / "__0_0.distcp").unlink())
        with pytest.raises(KeyboardInterrupt):
            convert(step, delete_shards=True)
    verify(step)
    with open_weights(step / "pretrained_model") as source:
        assert {name: source.whole(name).tolist() for name in source.specs} == {
            name: tensor.tolist() for name, tensor in TENSORS.items()
        }


def test_a_model_that_shall_be_loaded_is_gathered_once(step: Path) -> None:
    gather_if_needed(step / "pretrained_model")
    written = step / "pretrained_model" / "model.safetensors"
    before = written.stat().st_mtime_ns
    gather_if_needed(step / "pretrained_model")
    assert written.stat().st_mtime_ns == before and "pretrained_model/model.safetensors" in verify(step).files


def test_averaged_weights_are_converted_where_they_lie(step: Path) -> None:
    averages = step / "pretrained_model_ema"
    shutil.copytree(step / "pretrained_model", averages)
    assert convert(averages, delete_shards=True) == averages / "model.safetensors"
    assert not (averages / "pytorch_model_fsdp_0").exists()
    assert (step / "pretrained_model" / "pytorch_model_fsdp_0").is_dir(), "of the other model nothing is touched"
    assert describe(averages).formats == ("model.safetensors",)
    assert describe(step).formats == ("pytorch_model_fsdp_0/",)


def test_a_file_that_is_not_what_the_index_says_is_refused(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafetensorsWriter, "order", staticmethod(lambda specs: [n for n in specs if n != "steps"]))
    with pytest.raises(CheckpointError, match="not what the index says: steps"):
        convert(step, delete_shards=True)
    assert verify(step) and not (step / "pretrained_model/model.safetensors").exists()


def test_an_adapter_keeps_its_name(step: Path) -> None:
    (step / "pretrained_model" / "adapter_config.json").write_text("{}")
    assert convert(step).name == "adapter_model.safetensors"


def test_an_index_cannot_run_anything(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    for content in (pickle.dumps(Evil()), pickle.dumps({"a": 1}), b"no pickle", b""):
        (tmp_path / ".metadata").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"\.metadata is no index of shards"):
            read_index(tmp_path / ".metadata")
    assert not (tmp_path / "ran").exists()


def test_an_index_may_not_point_outside(step: Path) -> None:
    folder = step / "pretrained_model/pytorch_model_fsdp_0"
    content = (folder / ".metadata").read_bytes()
    (folder.parent / "o_0_0.distcp").write_bytes(b"")
    (folder / ".metadata").write_bytes(content.replace(b"__0_0.distcp", b"../../passwd"))
    with ShardSource(folder, "model.") as source, pytest.raises(CheckpointError, match=r"points outside"):
        source.whole("block.weight")


def lie(index: Any, entry: Any, key: Any) -> dict[str, Callable[[], Any]]:
    """What an index may claim of the two blocks [3, 4] of one tensor."""
    first, second = entry.chunks
    where = index.storage_data[key]
    return {
        "takes more than": lambda: (
            setattr(entry, "size", torch.Size((1 << 40, 4))), setattr(second, "sizes", torch.Size(((1 << 40) - 3, 4)))
        ),
        "does not lie within": lambda: setattr(second, "offsets", torch.Size((5, 0))),
        "28 of 24 elements|36 of 24 elements": lambda: entry.chunks.append(first),
        "12 of 24 elements": lambda: entry.chunks.pop(),
        "no type": lambda: setattr(entry.properties, "dtype", "float32"),
        "or no shape": lambda: setattr(entry, "size", ("a", 4)),
        "shorter|longer": lambda: setattr(second, "sizes", torch.Size((3,))),
        "does not say where": lambda: setattr(where, "offset", -1),
        "where a block of": lambda: setattr(where, "length", 1 << 80),
    }


@pytest.mark.parametrize("number", range(9))
def test_an_index_that_lies_is_refused_before_anything_is_read(step: Path, number: int) -> None:
    path = step / "pretrained_model/pytorch_model_fsdp_0/.metadata"
    index = read_index(path)
    entry = index.state_dict_metadata["model.block.weight"]
    key = MetadataIndex("model.block.weight", entry.chunks[0].offsets)
    said, change = list(lie(index, entry, key).items())[number]
    # Blocks are looked up by where they begin: the second one goes along where it is moved.
    info = index.storage_data[MetadataIndex("model.block.weight", entry.chunks[1].offsets)]
    change()
    if len(entry.chunks) > 1:
        index.storage_data[MetadataIndex("model.block.weight", entry.chunks[1].offsets)] = info
    path.write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointError, match=rf"\.metadata is no index of shards: .*({said})"):
        convert(step)
    assert not list(path.parent.parent.glob("*.safetensors*"))


def test_a_block_of_another_type_is_refused(step: Path) -> None:
    path = step / "pretrained_model/pytorch_model_fsdp_0/.metadata"
    index = read_index(path)
    index.state_dict_metadata["model.block.weight"].properties.dtype = torch.int32
    path.write_bytes(pickle.dumps(index))
    with pytest.raises(CheckpointError, match=r"the block of model.block.weight is not what the index says"):
        convert(step)


def test_blocks_that_make_no_whole_are_noticed(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, 0)
    writer.add("model.a", torch.ones(2, 3), TensorSpec(torch.float32, (4, 3)), (0, 0))
    writer.close()
    with pytest.raises(CheckpointError, match="6 of 12 elements of model.a were stored"):
        write_index(tmp_path, [writer.notes()], {})


def test_regions_are_put_together_from_blocks(step: Path) -> None:
    with ShardSource(step / "pretrained_model/pytorch_model_fsdp_0", "model.") as source:
        expected = TENSORS["block.weight"]
        for row in range(6):
            for height in range(7 - row):
                found = source.read("block.weight", (row, 1), (height, 2))
                assert torch.equal(found, expected[row : row + height, 1:3])


class FakeHub:
    """Stands in for the hub's client."""

    def __init__(self, *, card_fails: bool = False, fails: bool = False) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.card_fails, self.fails = card_fails, fails

    def create_repo(self, repository: str, **options: Any) -> str:
        self.calls.append(("create_repo", {"repository": repository, **options}))
        return f"https://hub.example/{repository}"

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload_folder", options))
        if self.fails:
            raise OSError("no route to the hub")

    def upload_file(self, **options: Any) -> None:
        self.calls.append(("upload_file", options))
        if self.card_fails:
            raise ValueError("no card")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A client that uploads nowhere."""
    fake = FakeHub()
    module = types.ModuleType("huggingface_hub")
    module.HfApi = lambda: fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return fake


def test_the_command_under_both_names(step: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "convert", str(step)]) == 0
    arguments = [f"--checkpoint_dir={step}", "--delete_dcp=true", "--push_to_hub=me/policy", "--private=true"]
    assert run(["checkpoint", "convert-dcp", *arguments]) == 0
    assert "model.safetensors\nhttps://hub.example/me/policy" in capsys.readouterr().out
    assert [name for name, _ in hub.calls] == ["create_repo", "upload_folder", "upload_file"]
    assert hub.calls[0][1]["private"] is True
    assert hub.calls[1][1]["allow_patterns"] == ["*.safetensors", "*.json", "*.yaml", "*.md"]
    assert not (step / "pretrained_model/pytorch_model_fsdp_0").exists() and verify(step)
    assert run(["checkpoint", "convert-dcp", f"--checkpoint_dir={step}"]) == 1
    assert "There are no shards to convert" in capsys.readouterr().err


def test_a_card_that_fails_is_a_warning_and_an_upload_that_fails_an_error(
    step: Path, hub: FakeHub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = convert(step).parent
    hub.card_fails = True
    assert push_to_hub(folder, "me/policy") == "https://hub.example/me/policy"
    assert "without a model card: ValueError: no card" in caplog.text
    hub.fails = True
    with pytest.raises(CheckpointError, match="could not be uploaded to me/policy: OSError: no route"):
        push_to_hub(folder, "me/policy")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependency, match="pip install huggingface_hub"):
        push_to_hub(folder, "me/policy")


def test_inspect_and_verify(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = step.parent
    assert run(["checkpoint", "inspect", str(root), "--tensors"]) == 0
    text = capsys.readouterr().out
    for part in ("dp_world_size", "pytorch_model_fsdp_0/", "block.weight", "6x4", "bfloat16", "__1_0.distcp"):
        assert part in text
    assert run(["checkpoint", "inspect", str(step), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"]["block.weight"] == {"dtype": "float32", "shape": [6, 4]}
    assert run(["checkpoint", "verify", str(root / "last")]) == 0
    assert "is whole: step 3" in capsys.readouterr().out
    names = list(Manifest.load(step).files)
    assert len(names) == 5
    for name in [*names, "manifest.json"]:
        content = (step / name).read_bytes()
        (step / name).write_bytes(content[:-1] + bytes([content[-1] ^ 0xFF]))
        assert run(["checkpoint", "verify", str(step)]) == 1
        assert Path(name).name in capsys.readouterr().err
        (step / name).write_bytes(content)
    assert run(["checkpoint", "verify", str(root / "000009")]) == 1
    assert "Steps in" in capsys.readouterr().err


def test_files_that_the_manifest_does_not_list_are_named(step: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are no fault, but loading may take them for the checkpoint's: shards go before a file."""
    assert run(["checkpoint", "verify", str(step)]) == 0
    assert "does not list" not in caplog.text
    (step / "pretrained_model" / "notes.md").write_text("a note")
    assert run(["checkpoint", "verify", str(step)]) == 0
    CheckpointStore(step.parent).resolve("auto")
    assert caplog.text.count("manifest.json does not list") == 2 and "pretrained_model/notes.md" in caplog.text
