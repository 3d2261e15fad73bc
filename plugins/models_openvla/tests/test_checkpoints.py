"""Checkpoint folders: what is read is written again byte for byte, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_policy, observe, published

from plugrl.errors import CheckpointError, ConfigError
from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.example import openvla, tiny_config, write_folder
from plugrl_models_openvla.policy import build_openvla
from plugrl_models_openvla.value_head import ValueHead
from plugrl_models_openvla.weight_files import INDEX, SINGLE, write_new

COMPANIONS = {
    "README.md": "# a card\r\n",
    "modeling_prismatic.py": "raise RuntimeError('never run')\n",
    "generation_config.json": '{"eos_token_id":2}',
    "added_tokens.json": '{  "<PAD>":32000 }',
    "dataset_statistics.json": json.dumps({"other": {"action": {"q01": [0] * 3, "q99": [1] * 3}}}),
}


@pytest.fixture
def folder(tmp_path):
    """A folder as it is published: several files of weights with an index, and files beside them."""
    section = write_folder(tmp_path / "model", add_value_head=False)
    path = Path(section["path"])
    state = load_file(path / SINGLE)
    (path / SINGLE).unlink()
    write_new(path, state, shard_bytes=60_000)
    for name, text in COMPANIONS.items():
        (path / name).write_bytes(text.encode())
    assert len(list(path.glob("*.safetensors"))) > 2
    return {**section, "unnorm_key": "toy"}


def bytes_of(path):
    return {file.name: file.read_bytes() for file in Path(path).iterdir()}


def rewrite(section, change):
    """Change the tensors of the file that holds ``vision_backbone.featurizer.blocks.0``; the index stays."""
    path = Path(section["path"])
    for file in path.glob("*.safetensors"):
        state = load_file(file)
        if any("vision_backbone.featurizer.blocks.0.ls1" in name for name in state):
            save_file(change(dict(state)), file, metadata={"format": "pt"})
            return
    raise AssertionError("no such file")


# --------------------------------------------------------------------- round trips
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_loading_and_saving_keeps_every_byte(folder, tmp_path, precision) -> None:
    if precision == "bf16":
        for file in Path(folder["path"]).glob("*.safetensors"):
            save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    policy = build_openvla({**folder, "precision": precision})
    policy.save_pretrained(tmp_path / "again", published(policy))
    before, after = bytes_of(folder["path"]), bytes_of(tmp_path / "again")
    assert after.keys() == before.keys() >= COMPANIONS.keys()
    assert [name for name in before if before[name] != after[name]] == []


def test_bf16_keeps_positions_exact(folder) -> None:
    policy = build_openvla({**folder, "precision": "bf16"})
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.bfloat16}
    assert policy.model.language_model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_loaded_policy_acts_as_the_saved_one(folder, tmp_path) -> None:
    policy = build_openvla({**folder, "add_value_head": True, "seed": 7}).eval()
    policy.save_pretrained(tmp_path / "again", published(policy))
    assert (tmp_path / "again" / INDEX).is_file()
    again = build_openvla({**folder, "path": str(tmp_path / "again"), "add_value_head": True, "seed": 1}).eval()
    actions, result = policy.predict_action_batch(observe(), "eval")
    same, found = again.predict_action_batch(observe(), "eval")
    assert torch.equal(actions, same) and torch.equal(result["prev_values"], found["prev_values"])
    assert result["prev_values"].abs().min() > 0


def test_names_of_timm_are_read_and_kept(folder, tmp_path) -> None:
    def renamed(state):
        return {name.replace("blocks.0.ls1.scale_factor", "blocks.0.ls1.gamma"): item for name, item in state.items()}

    rewrite(folder, renamed)
    path = Path(folder["path"])
    index = json.loads((path / INDEX).read_text())
    index["weight_map"] = renamed(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))
    policy = build_openvla(folder)
    assert "vision_backbone.featurizer.blocks.0.ls1.scale_factor" in published(policy)
    policy.save_pretrained(tmp_path / "again", published(policy))
    assert bytes_of(tmp_path / "again") == bytes_of(path)
    assert "vision_backbone.featurizer.blocks.0.ls1.gamma" in index["weight_map"]


def test_without_weights_the_skeleton_is_the_same_model(folder) -> None:
    with torch.device("meta"):
        outline = build_openvla(folder)
    whole = build_openvla(folder)
    assert {tensor.device.type for tensor in (*outline.parameters(), *outline.buffers())} == {"meta"}
    shapes = [{name: tensor.shape for name, tensor in policy.named_parameters()} for policy in (outline, whole)]
    assert shapes[0] == shapes[1]
    assert outline.parts.statistics.low.device.type == "cpu"


# --------------------------------------------------------------------- what does not fit
def test_missing_files_are_all_named(folder) -> None:
    files = sorted(Path(folder["path"]).glob("*.safetensors"))
    for file in files[1:]:
        file.unlink()
    with pytest.raises(CheckpointError) as caught:
        build_openvla(folder)
    assert all(file.name in str(caught.value) for file in files[1:]) and files[0].name not in str(caught.value)
    assert f"{len(files) - 1} of the {len(files)}" in str(caught.value)


def test_a_file_that_is_cut_off_is_named(folder) -> None:
    file = sorted(Path(folder["path"]).glob("*.safetensors"))[1]
    content = file.read_bytes()
    for wrong, words in ((content[:-4], "cut off"), (content[:40], "beginning"), (b"", "beginning")):
        file.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=words) as caught:
            build_openvla(folder)
        assert file.name in str(caught.value)


def test_every_wrong_tensor_is_named_at_once(folder) -> None:
    def change(state):
        del state["vision_backbone.featurizer.blocks.0.ls1.scale_factor"]
        state["vision_backbone.featurizer.blocks.0.norm1.bias"] = torch.zeros(3)
        return {**state, "projector.fc9.weight": torch.zeros(1)}

    rewrite(folder, change)
    with pytest.raises(CheckpointError) as caught:
        build_openvla(folder)
    for words in ("1 tensors are missing: vision_backbone.featurizer.blocks.0.ls1.scale_factor",
                  "1 tensors have no place in it: projector.fc9.weight", "norm1.bias [3] instead of [16]"):  # fmt: skip
        assert words in str(caught.value)


def test_folders_that_are_no_checkpoints(folder, tmp_path) -> None:
    path = Path(folder["path"])
    with pytest.raises(ConfigError, match="no folder"):
        build_openvla({**folder, "path": str(tmp_path / "nowhere")})
    (path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="no index"):
        build_openvla(folder)
    (path / INDEX).unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        build_openvla(folder)
    (path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="JSON object"):
        build_openvla(folder)
    (path / "config.json").unlink()
    with pytest.raises(ConfigError, match="config.json"):
        build_openvla(folder)


@pytest.mark.parametrize("case", cases("load_keys"))
def test_strictness_is_that_of_the_reference(case: Case, tmp_path) -> None:
    section = write_folder(tmp_path, add_value_head=False)
    state = load_file(tmp_path / SINGLE)
    state.pop(case.given.get("missing", case.expected.get("mapped", "none")), None)
    if "present" in case.given:
        state[case.given["present"]] = torch.full((16,), 3.0)
    save_file(state, tmp_path / SINGLE)
    with case.outcome():
        found = published(build_openvla(section))
        if "mapped" in case.expected:
            assert found[case.expected["mapped"]].tolist() == [3.0] * 16
        case.check({**case.expected, "ignored": case.given["present"] not in found})


# --------------------------------------------------------------------- the value head
@pytest.mark.parametrize("case", cases("value_head"))
def test_value_head_is_that_of_the_reference(case: Case) -> None:
    given = {key: value for key, value in case.given.items() if key != "batch"}
    with case.outcome():
        head = ValueHead(**given)
        rows = case.expected.get("batch", 1)
        found = head(torch.randn(rows, given["input_dim"]))
        case.check({
            "shapes": {name: list(tensor.shape) for name, tensor in head.state_dict().items()},
            "parameters": sum(tensor.numel() for tensor in head.parameters()),
            "finite": bool(torch.isfinite(found).all()), "output_shape": list(found.shape), "batch": rows,
        })  # fmt: skip


def test_value_head_starts_with_the_gain_of_relu() -> None:
    torch.manual_seed(0)
    head = ValueHead(256, (512, 128))
    expected = {"mlp.0.weight": (2 / 512) ** 0.5, "mlp.2.weight": (2 / 128) ** 0.5, "mlp.4.weight": 0.02}
    for name, tensor in head.named_parameters():
        if name in expected:
            assert tensor.std().item() == pytest.approx(expected[name], rel=0.1), name
        else:
            assert not tensor.any(), name


def test_a_missing_value_head_is_drawn_from_the_seed(folder) -> None:
    section = {**folder, "add_value_head": True}
    first, same, other = (published(build_openvla({**section, "seed": seed})) for seed in (1, 1, 2))
    name = "value_head.mlp.0.weight"
    assert torch.equal(first[name], same[name]) and not torch.equal(first[name], other[name])
    assert torch.equal(first["projector.fc1.weight"], other["projector.fc1.weight"])


def test_a_value_head_that_nobody_asked_for_is_named(tmp_path) -> None:
    section = write_folder(tmp_path)
    with pytest.raises(CheckpointError, match="add_value_head=true"):
        build_openvla({**section, "add_value_head": False})
    state = load_file(tmp_path / SINGLE)
    del state["value_head.mlp.0.bias"]
    save_file(state, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match="value_head.mlp.0.bias"):
        build_openvla(section)


# --------------------------------------------------------------------- scales of actions
def test_statistics_beside_the_model_and_of_the_user_go_over_those_of_the_configuration(folder, tmp_path) -> None:
    assert build_openvla({**folder, "unnorm_key": "other"}).parts.statistics.high.tolist() == [1, 1, 1]
    mine = {"toy": {"action": {"q01": [0] * 3, "q99": [2] * 3}}}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(mine))
    for given in (mine, str(file)):
        policy = build_openvla({**folder, "norm_stats": given})
        assert policy.parts.statistics.high.tolist() == [2, 2, 2] and policy.parts.statistics.mask.all()
        policy.save_pretrained(tmp_path / "again", published(policy))
        again = build_openvla({**folder, "path": str(tmp_path / "again")})
        assert again.parts.statistics.high.tolist() == [2, 2, 2]
        assert set(again.parts.folder.config.norm_stats) == {"toy", "other"}


def test_a_wrong_unnorm_key_lists_what_there_is(folder) -> None:
    for key, words in ((None, ("toy", "other")), ("toi", ("toi", "toy", "other"))):
        with pytest.raises(ConfigError, match="model.unnorm_key") as caught:
            build_openvla({**folder, "unnorm_key": key})
        assert all(word in str(caught.value) for word in words)
    with pytest.raises(ConfigError, match='model.action_dim: 7, but .*"toy".* 3 numbers'):
        build_openvla({**folder, "action_dim": 7})
    bare = tiny_config()
    del bare["norm_stats"]
    with pytest.raises(ConfigError, match="norm_stats"):
        build_openvla({**openvla(), "config": bare})


def test_another_image_size_is_refused(folder) -> None:
    build_openvla({**folder, "image_size": [16, 16]})
    for size in (224, [16, 24]):
        with pytest.raises(ConfigError, match="model.image_size.*16 x 16"):
            build_openvla({**folder, "image_size": size})
    with pytest.raises(ConfigError, match="means has 1 entries for 2"):
        (Path(folder["path"]) / "preprocessor_config.json").write_text('{"means": [[0.5, 0.5, 0.5]]}')
        build_openvla(folder)


# --------------------------------------------------------------------- config.json
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision_backbone_id": "clip-vit-l-336px"}, ("clip-vit-l-336px", "dinosiglip-vit-so-224px")),
        ({"llm_backbone_id": "mistral-v0.1-7b-pure"}, ("mistral-v0.1-7b-pure", "llama2-")),
        ({"llm_backbone_id": "phi-2-3b"}, ("phi-2-3b",)),
        ({"timm_model_ids": ["resnet50", "vit_so400m_patch14_siglip_224"]}, ("resnet50",)),
        ({"timm_override_act_layers": ["quick_gelu", None]}, ("quick_gelu",)),
        ({"arch_specifier": "no-align+linear"}, ("no-align+linear",)),
        ({"image_sizes": [16]}, ("image_sizes", "2 entries")),
        ({"vision_overrides": [{"embed_dims": 3}, {}]}, ("embed_dims", "embed_dim")),
        ({"vision_overrides": [{"embed_dim": 15}, {}]}, ("15", "16 heads")),
        ({"vision_overrides": [{"image_size": 16}, {"image_size": 8}]}, ("smaller than a patch",)),
        ({"vision_overrides": [{"depth": True}, {}]}, ("depth",)),
        ({"n_action_bins": 1}, ("n_action_bins",)),
        ({"n_action_bins": 256, "text_config": {"vocab_size": 100}}, ("n_action_bins 256", "92")),
        ({"text_config": {"model_type": "mistral"}}, ("mistral",)),
        ({"text_config": {"num_key_value_heads": 3}}, ("num_key_value_heads 3",)),
        ({"text_config": {"tie_word_embeddings": True}}, ("tie_word_embeddings",)),
        ({"action_bins": 12}, ("action_bins", "n_action_bins")),
    ],
)
def test_configurations_that_are_not_implemented_are_named(changes, words) -> None:
    with pytest.raises(ConfigError) as caught:
        build_openvla({**openvla(), "config": {**tiny_config(), **changes}})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_towers_may_be_single_and_of_any_size() -> None:
    config = tiny_config(fused=False)
    config["vision_overrides"] = [{**config["vision_overrides"][0], "image_size": 30, "patch_size": 6, "num_heads": 4}]
    policy = make_policy(config=config)
    assert policy.parts.folder.config.num_patches == 25
    assert not [name for name in published(policy) if "fused" in name or "fc3" in name]
    actions, result = policy.predict_action_batch(observe(3))
    assert actions.shape == (3, 1, 3) and result["forward_inputs"]["pixels"].shape == (3, 3, 30, 30)


def test_a_vocabulary_without_room_is_refused() -> None:
    text = {**tiny_config()["text_config"], "vocab_size": 32}
    with pytest.raises(ConfigError, match="vocab_size: 32 leaves no room"):
        build_openvla({**openvla(), "config": {**tiny_config(), "text_config": text}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": None}, "either path"),
        ({"path": "x"}, "not both"),
        ({"tokenizer": None}, "tokenizer is needed"),
        ({"tokenizer": {"type": "words", "words": []}}, "needs words"),
        ({"unorm_key": "x"}, "unorm_key"),
        ({"action_transform": "widow"}, "widowx"),
        ({"value_head_activation": "swish"}, "swish"),
    ],
)
def test_wrong_sections_say_what_is_wrong(changes, words) -> None:
    with pytest.raises(ConfigError, match=words):
        build_openvla({**openvla(), **changes})
