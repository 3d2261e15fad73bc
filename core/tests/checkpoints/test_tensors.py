"""Tensors and plain values at rest."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from plugrl.checkpoints import (  # noqa: E402
    flatten_optimizer_state,
    load_metadata,
    load_tensors,
    read_json,
    save_tensors,
    unflatten_optimizer_state,
    write_json,
)
from plugrl.errors import CheckpointError  # noqa: E402


def test_tensors_of_every_layout_come_back(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "strided": base.t(),
        "slice": base[1:],
        "same": base,
        "again": base,
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 2),
        "rng": torch.get_rng_state(),
        "half": base.to(torch.bfloat16),
        "grad": base.clone().requires_grad_(),
    }
    save_tensors(tmp_path / "new" / "t.safetensors", tensors, {"step": "3"})
    loaded = load_tensors(tmp_path / "new" / "t.safetensors")
    assert set(loaded) == set(tensors)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert all(loaded[name].dtype == tensors[name].dtype for name in tensors)
    assert load_metadata(tmp_path / "new" / "t.safetensors") == {"step": "3"}


def test_optimizer_state_is_keyed_by_parameter_name(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {name: optimizer.state[parameter] for name, parameter in layer.named_parameters()}
    flat = flatten_optimizer_state({**state, "odd/name": {"step": 2.0}})
    assert "state/weight/exp_avg" in flat
    save_tensors(tmp_path / "o.safetensors", flat)
    back = unflatten_optimizer_state(load_tensors(tmp_path / "o.safetensors"))
    assert set(back) == {"weight", "bias", "odd/name"} and float(back["odd/name"]["step"]) == 2.0
    assert all(torch.equal(back[name][slot], state[name][slot]) for name in state for slot in state[name])
    with pytest.raises(CheckpointError, match="state/<parameter>/<slot>"):
        unflatten_optimizer_state({"weight": torch.ones(1)})


def test_damaged_missing_or_pickled_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(CheckpointError, match=r"t\.safetensors is missing"):
        load_tensors(path)
    save_tensors(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match=r"t\.safetensors cannot be read"):
        load_tensors(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    for load in (load_tensors, load_metadata):
        with pytest.raises(CheckpointError, match=r"t\.safetensors cannot be read"):
            load(path)


def test_json_comes_back_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    write_json(path, {"step": 3, "lr": [1e-6]})
    assert read_json(path) == {"step": 3, "lr": [1e-6]}
    path.write_text('{"step": ')
    with pytest.raises(CheckpointError, match=r"state\.json is no valid JSON"):
        read_json(path)
    with pytest.raises(CheckpointError, match=r"absent\.json is missing"):
        read_json(tmp_path / "absent.json")
