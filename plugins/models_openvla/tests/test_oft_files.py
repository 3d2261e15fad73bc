"""Files of OpenVLA-OFT: heads beside the weights, statistics, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oft_tiny import observations, policy, section
from safetensors.torch import load_file, save_file

from plugrl.errors import CheckpointError
from plugrl.testing.reference import golden_folder
from plugrl_models_openvla.oft_policy import OpenVLAOFTPolicy, build_openvla_oft

L1 = {"action_head": "l1", "use_proprio": True, "num_images_in_input": 2}
VARIANTS = {
    "discrete": {},
    "official": {"implement_version": "official"},
    "all": {**L1, "use_film": True},
}


def save(found: OpenVLAOFTPolicy, folder: Path) -> None:
    state = {found.published_name(name): tensor for name, tensor in found.state_dict().items()}
    found.save_pretrained(folder, {name: tensor for name, tensor in state.items() if name is not None})


def load(folder: Path, **keys: Any) -> OpenVLAOFTPolicy:
    values = {key: value for key, value in section(**keys).items() if key not in ("config", "tokenizer", "norm_stats")}
    return build_openvla_oft({**values, "path": str(folder)}, torch.float32)


@pytest.mark.parametrize("name, keys", [
    ("oft_discrete", {"add_value_head": True, "value_type": "chunk_level"}),
    ("oft_l1", L1),
])  # fmt: skip
def test_a_published_folder_is_written_back_byte_for_byte(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    folder = golden_folder() / name
    values = {"path": str(folder), "tokenizer": {"type": "words", "words": ["a"]}, "unnorm_key": "bridge_orig", **keys}
    save(build_openvla_oft(values, torch.bfloat16), tmp_path)
    own = {file.name for file in folder.iterdir()} - {"expected.safetensors"}
    assert {file.name for file in tmp_path.iterdir()} == own
    for file in own:
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes(), f"{file} changed"


@pytest.mark.parametrize("keys", VARIANTS.values(), ids=VARIANTS)
def test_what_was_saved_acts_alike(keys: dict[str, Any], tmp_path: Path) -> None:
    found, obs = policy(**keys), observations(cameras=2)
    if keys.get("use_film"):
        with torch.no_grad():
            found.model.film.featurizer[0].shift.weight.fill_(0.2)
    save(found, tmp_path)
    again = load(tmp_path, **keys, seed=99)
    for acted in (found, again):
        assert acted.parts.statistics.high.tolist() == [2.0, 1.0]
    torch.testing.assert_close(found.predict_action_batch(obs, "eval")[0], again.predict_action_batch(obs, "eval")[0])
    torch.testing.assert_close(found.predict_values(obs), again.predict_values(obs))


def split(folder: Path, head: str, prefix: str = "module.") -> Path:
    """Move a head out of the weights into a file of its own, as training scripts write it."""
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    names = [name for name in tensors if name.startswith(f"{head}.")]
    file = folder / f"{head}--100_checkpoint.safetensors"
    save_file({prefix + name.removeprefix(f"{head}."): tensors.pop(name) for name in names}, file)
    save_file(tensors, weights)
    return file


def test_heads_are_found_in_files_of_their_own(tmp_path: Path) -> None:
    found, obs = policy(**L1), observations(cameras=2)
    save(found, tmp_path / "a")
    acted = found.predict_action_batch(obs)[0]
    head = split(tmp_path / "a", "action_head")
    split(tmp_path / "a", "proprio_projector", prefix="module.module.")
    split(tmp_path / "a", "value_head", prefix="value_head.")
    again = load(tmp_path / "a", **L1)
    torch.testing.assert_close(again.predict_action_batch(obs)[0], acted)
    save(again, tmp_path / "b")
    names = {file.name for file in (tmp_path / "b").iterdir()}
    assert names == {file.name for file in (tmp_path / "a").iterdir()}
    assert all((tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes() for name in names)

    (tmp_path / "a" / "action_head-2.safetensors").write_bytes(head.read_bytes())
    with pytest.raises(CheckpointError, match="several files of the action_head"):
        load(tmp_path / "a", **L1)


def test_a_folder_without_heads_gets_new_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(policy(add_value_head=False), tmp_path)
    new = load(tmp_path, **L1)
    assert new.predict_action_batch(observations(cameras=2))[0].shape == (3, 3, 2)
    assert "no action_head (model.action_head=l1): it starts with random weights" in caplog.text
    assert "no proprio_projector" in caplog.text and "value_head" not in caplog.text


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    found = policy(**L1)
    save(found, tmp_path)
    with pytest.raises(CheckpointError, match="bring a action_head: set model.action_head=l1"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="bring a proprio_projector: set model.use_proprio=true"):
        load(tmp_path, action_head="l1")
    with pytest.raises(CheckpointError, match="bring a value_head: set model.add_value_head=true"):
        load(tmp_path, **L1, add_value_head=False)
    with pytest.raises(CheckpointError, match=r"value_head.mlp.4.weight \[3, 8\] instead of \[1, 8\]"):
        load(tmp_path, **L1, value_type="chunk_level")
    file = split(tmp_path, "action_head")
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if "fc2" not in name}, file)
    with pytest.raises(CheckpointError, match="2 tensors are missing: action_head.model.fc2.bias"):
        load(tmp_path, **L1)
    file.rename(file.with_suffix(".pt"))
    with pytest.raises(CheckpointError, match=r"action_head--100_checkpoint.pt would have to be unpickled"):
        load(tmp_path, **L1)


def test_statistics_beside_the_weights_go_over_those_inside(tmp_path: Path) -> None:
    save(policy(), tmp_path)
    file = tmp_path / "dataset_statistics.json"
    other = json.loads(file.read_text())
    other["toy"]["action"]["q99"] = [4.0, 1.0]
    other["goal_no_noops"] = other["toy"]
    file.write_text(json.dumps(other))
    assert load(tmp_path, unnorm_key="toy").parts.statistics.high.tolist() == [4.0, 1.0]
    assert load(tmp_path, unnorm_key="goal").parts.statistics.high.tolist() == [4.0, 1.0]
