"""Where things stand in the sequences of OpenVLA-OFT, and what is derived from the configuration."""

from __future__ import annotations

import pytest

from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.folder_config import FolderConfig
from plugrl_models_openvla.oft_config import OpenVLAOFTConfig
from plugrl_models_openvla.slots import Slots, value_outputs
from plugrl_models_openvla.tokens import ActionTokens


@pytest.mark.parametrize("case", cases("oft_slots"))
def test_positions_are_those_of_the_reference(case: Case) -> None:
    given = case.given
    slots = Slots(
        prompt_length=given["prompt_len"], num_patches=given["n_patches"], num_images=given["n_images"],
        action_dim=given["action_dim"], num_chunks=given["chunks"], proprio=given.get("proprio", False),
    )  # fmt: skip
    case.check({
        "input_len_with_placeholders_and_stop": slots.input_length,
        "logits_start": slots.first,
        "logits_end": slots.end,
        "value_index": slots.first,
        "total_len_without_stop": slots.length,
    })  # fmt: skip


@pytest.mark.parametrize("case", cases("oft_value_outputs"))
def test_values_are_one_for_a_chunk_or_one_for_each_action(case: Case) -> None:
    with case.outcome():
        case.check({"outputs": value_outputs(case.given["value_type"], case.given["num_action_chunks"])})


@pytest.mark.parametrize("case", cases("oft_constants"))
def test_constants_come_from_the_configuration_not_from_the_command_line(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", case.given["argv"])
    case.check(OpenVLAOFTConfig(path="folder", **case.given["config"]).model_dump())


@pytest.mark.parametrize("case", cases("derived"))
def test_counts_are_derived_from_the_checkpoint(case: Case) -> None:
    given = case.given
    folder = FolderConfig.read({
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "image_sizes": [given["image_size"]] * 2,
        "vision_overrides": [{"patch_size": given["patch"]}] * 2,
        "text_config": {"vocab_size": given["text_vocab"]},
        "pad_to_multiple_of": given["pad_multiple"],
        "n_action_bins": given["n_action_bins"],
    })  # fmt: skip
    tokens = ActionTokens.of(given["text_vocab"], given["pad_multiple"], given["n_action_bins"])
    slots = Slots(prompt_length=1, num_patches=folder.num_patches, action_dim=given["action_dim"],
                  num_chunks=given["chunks"])  # fmt: skip
    case.check({
        "n_patches": folder.num_patches,
        "vocab_limit": folder.text_vocab,
        "first_action_token": tokens.first,
        "action_tokens": slots.count,
    })  # fmt: skip
