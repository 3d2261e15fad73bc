"""Processors: known values, inverses, and files that are read exactly or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from plugrl.errors import CheckpointError, ConfigError
from plugrl.processors import PREPROCESSOR, PROCESSOR_STEPS, Pipeline, ProcessorStep, register_processor_step
from plugrl.processors.steps import Normalizer, Renamer, Unnormalizer, norm_map

FEATURES = {
    "observation.state": {"type": "STATE", "shape": [2]},
    "action": {"type": "ACTION", "shape": [3]},
    "observation.image": {"type": "VISUAL", "shape": [3, 4, 4]},
}
STATISTICS = {
    "observation.state": {"mean": torch.tensor([1.0, 2.0]), "std": torch.tensor([2.0, 0.5])},
    "action": {"min": torch.tensor([-1.0, 0.0, 5.0]), "max": torch.tensor([1.0, 4.0, 5.0])},
}
MODES = norm_map({"action": "min_max"}, list(FEATURES))


def test_golden_values() -> None:
    batch = {
        "observation.state": torch.tensor([[3.0, 2.5]]),
        "action": torch.tensor([[[-1.0, 3.0, 5.0], [1.0, 0.0, 5.0]]]),
        "observation.image": torch.full((1, 3, 4, 4), 7.0),
        "action_is_pad": torch.tensor([[False, True]]),
    }
    found = Normalizer(FEATURES, MODES, STATISTICS)(batch)
    torch.testing.assert_close(found["observation.state"], torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(found["action"], torch.tensor([[[-1.0, 0.5, -1.0], [1.0, -1.0, -1.0]]]))
    assert found["observation.image"] is batch["observation.image"]
    assert found["action_is_pad"].dtype == torch.bool
    back = Unnormalizer(FEATURES, MODES, STATISTICS)(found)
    torch.testing.assert_close(back["action"], batch["action"])
    torch.testing.assert_close(back["observation.state"], batch["observation.state"])


def test_a_pipeline_survives_its_files_bit_for_bit(tmp_path: Path) -> None:
    steps = [
        ("rename_observations_processor", Renamer({"state": "observation.state"})),
        ("normalizer_processor", Normalizer(FEATURES, MODES, STATISTICS)),
    ]
    Pipeline(PREPROCESSOR, steps).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "policy_preprocessor.json", "policy_preprocessor_step_1_normalizer_processor.safetensors",
    ]  # fmt: skip
    described = json.loads((tmp_path / "policy_preprocessor.json").read_text())
    assert described["name"] == "policy_preprocessor"
    assert [set(step) for step in described["steps"]] == [
        {"registry_name", "config"}, {"registry_name", "config", "state_file"},
    ]  # fmt: skip
    loaded = Pipeline.load(tmp_path, PREPROCESSOR)
    batch = {"state": torch.randn(4, 2), "action": torch.randn(4, 5, 3)}
    for name, tensor in Pipeline(PREPROCESSOR, steps)(batch).items():
        assert torch.equal(tensor, loaded(batch)[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("action.min"), "missing action.min"),
        (lambda state: state.update(extra=torch.zeros(1)), "unexpected extra"),
        (lambda state: state.update({"action.min": torch.zeros(4)}), "action.min has shape"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    Pipeline(PREPROCESSOR, [("normalizer_processor", Normalizer(FEATURES, MODES, STATISTICS))]).save(tmp_path)
    file = tmp_path / "policy_preprocessor_step_0_normalizer_processor.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file)
    with pytest.raises(CheckpointError, match=message):
        Pipeline.load(tmp_path, PREPROCESSOR)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "describes no processor"),
        ('{"name": "x"}', "describes no processor"),
        ('{"name": "x", "steps": [{"registry_name": "normaliser_processor", "config": {}}]}', "normalizer_processor"),
        ('{"name": "x", "steps": [{"registry_name": "normalizer_processor", "config": {"a": 1}}]}',
         "unexpected keyword"),
        ('{"name": "x", "steps": [{"registry_name": "rename_observations_processor", "config": {"rename_map": {}}, '
         '"state_file": "gone.safetensors"}]}', "gone.safetensors cannot be read"),
        ('{"name": "x", "steps": [{"registry_name": "normalizer_processor", "config": {"features": {"a": '
         '{"type": "STATE", "shape": [-1]}}, "norm_map": {"STATE": "MEAN_STD"}}}]}', "step normalizer_processor"),
        ('{"name": "x", "steps": [{"registry_name": "normalizer_processor", "config": {"features": {"a": '
         '{"type": "STATE"}}, "norm_map": {"STATE": "MEAN_STD"}}}]}', "step normalizer_processor"),
    ],
)  # fmt: skip
def test_a_malformed_description_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "policy_preprocessor.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        Pipeline.load(tmp_path, PREPROCESSOR)


def test_a_step_of_ones_own_is_found_by_its_name(tmp_path: Path) -> None:
    with PROCESSOR_STEPS.temporary():

        @register_processor_step("doubler")
        class Doubler(ProcessorStep):
            def __call__(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
                return {name: tensor * 2 for name, tensor in batch.items()}

        Pipeline("mine", [("doubler", Doubler())]).save(tmp_path)
        assert Pipeline.load(tmp_path, "mine")({"x": torch.ones(1)})["x"].item() == 2.0


def test_what_the_data_set_cannot_give_is_named() -> None:
    with pytest.raises(ConfigError, match="observation.state needs the statistic 'min'"):
        Normalizer(FEATURES, {"STATE": "MIN_MAX"}, STATISTICS)
    with pytest.raises(ConfigError, match=r"sft.normalization.actoin: .*action"):
        norm_map({"actoin": "min_max"}, list(FEATURES))


@pytest.mark.parametrize(
    ("mean", "message"),
    [([1.0], r"has shape \[1\]"), ([1.0] * 3, r"has shape \[3\]"), ([1.0, float("nan")], "has .* not finite")],
)
def test_a_statistic_that_does_not_fit_its_feature_is_named(mean: list[float], message: str) -> None:
    statistics = {"observation.state": {"mean": torch.tensor(mean), "std": torch.ones(2)}}
    with pytest.raises(ConfigError, match=rf"the statistic 'mean' of observation.state {message}.*\[2\]"):
        Normalizer({"observation.state": FEATURES["observation.state"]}, {"STATE": "MEAN_STD"}, statistics)


def test_a_statistic_of_a_picture_may_be_of_its_channels_alone() -> None:
    of_channels = {"mean": torch.tensor([0.0, 1.0, 2.0]).reshape(3, 1, 1), "std": torch.ones(3, 1, 1)}
    features = {"observation.image": FEATURES["observation.image"]}
    step = Normalizer(features, {"VISUAL": "MEAN_STD"}, {"observation.image": of_channels})
    assert step({"observation.image": torch.zeros(2, 3, 4, 4)})["observation.image"][0, :, 0, 0].tolist() == [0, -1, -2]
    other = Normalizer(features, {"VISUAL": "MEAN_STD"})
    other.load_state_dict({f"observation.image.{name}": value for name, value in of_channels.items()})
    assert torch.equal(other.state_dict()["observation.image.mean"], step.state_dict()["observation.image.mean"])
