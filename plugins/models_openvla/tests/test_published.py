"""Numbers of the published implementation, and the layout of published checkpoints."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plugrl.testing.reference import Case, cases, golden_folder
from plugrl_models_openvla.folder_config import FolderConfig
from plugrl_models_openvla.generation import generate
from plugrl_models_openvla.loading import load_weights
from plugrl_models_openvla.model import OpenVLAModel, positions_of, splice_mask
from plugrl_models_openvla.norm_statistics import NormStatistics
from plugrl_models_openvla.prompts import pad_prompts
from plugrl_models_openvla.sampling import Sampling, bin_logprobs, draw, entropy, logprob_of
from plugrl_models_openvla.tokens import ActionTokens
from plugrl_models_openvla.weight_files import WeightFiles

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def fused() -> tuple[OpenVLAModel, FolderConfig, dict[str, torch.Tensor]]:
    """The model of the reference, and what the published code answers."""
    folder = golden_folder() / "openvla_fused"
    config = FolderConfig.read(json.loads((folder / "config.json").read_text()))
    model = OpenVLAModel(config).eval()
    load_weights(model, WeightFiles.read(folder), torch.float32)
    return model, config, load_file(folder / "expected.safetensors")


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), atol=TOLERANCE, rtol=0)


def test_features_logits_and_loss_are_those_of_the_published_code(fused: Any) -> None:
    model, _, known = fused
    with torch.no_grad():
        output = model(known["input_ids"], torch.ones_like(known["input_ids"]), known["pixel_values"], known["labels"])
    close(output.patches, known["projector_features"])
    close(output.hidden, known["last_hidden_state"])
    close(output.logits, known["logits"])
    close(output.loss.view(1), known["loss"])


def test_logits_of_a_padded_batch_are_those_of_the_published_code(fused: Any) -> None:
    model, _, known = fused
    seen = splice_mask(known["padded_attention_mask"].bool(), 256)
    with torch.no_grad():
        logits = model(known["padded_input_ids"], known["padded_attention_mask"], known["pixel_values"]).logits
    assert not seen.all()
    close(logits[seen], known["padded_logits"][seen])


def test_greedy_tokens_and_actions_are_those_of_the_published_code(fused: Any) -> None:
    model, config, known = fused
    log_probs: list[torch.Tensor] = []

    def choose(states: torch.Tensor) -> torch.Tensor:
        values, ids = model.logits(states).log_softmax(-1).max(-1)
        log_probs.append(values)
        return ids

    with torch.no_grad():
        patches = model.embed_images(known["pixel_values"])
        sequences = model.splice(known["input_ids"], torch.ones_like(known["input_ids"]), patches)
    ids = generate(model, sequences, 7, choose)
    assert torch.equal(ids, known["greedy_tokens"])
    close(torch.stack(log_probs, 1), known["greedy_logprobs"])
    tokens = ActionTokens(config.text_vocab, config.n_action_bins)
    statistics = NormStatistics.of(config.norm_stats, None)
    close(statistics.unnormalise(tokens.decode(ids)), known["greedy_actions"])
    close(statistics.unnormalise(tokens.decode(known["action_tokens"])), known["decoded_actions"])


# --------------------------------------------------------------------- cases of the reference
def config_of(given: Any) -> FolderConfig:
    """The configuration of a model that a case describes."""
    towers = [given[key] for key in ("tower", "fused_tower") if key in given]
    names = {"dim": "embed_dim", "heads": "num_heads", "mlp": "mlp_dim", "image": "image_size", "patch": "patch_size",
             "attn_pool": "attention_pool"}  # fmt: skip
    text_names = {
        "vocab": "vocab_size", "hidden": "hidden_size", "intermediate": "intermediate_size",
        "layers": "num_hidden_layers", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    }  # fmt: skip
    changes = [{"class_token": bool(tower["reg_tokens"]), "num_heads": 1}
               | {names.get(key, key): value for key, value in tower.items()} for tower in towers]  # fmt: skip
    text = {text_names[key]: value for key, value in given["text"].items() if key in text_names}
    return FolderConfig.read({
        "vision_backbone_id": "dinosiglip-vit-so-224px" if len(towers) == 2 else "siglip-vit-so400m",
        "vision_overrides": changes, "text_config": text, "pad_token_id": given["text"].get("pad", 0),
        "pad_to_multiple_of": given["text"].get("pad_multiple", 0), "n_action_bins": given.get("n_action_bins", 256),
    })  # fmt: skip


def fill_by_formula(model: OpenVLAModel, phase: float) -> None:
    """Give every weight the value that the reference says."""
    state = model.state_dict()
    for number, name in enumerate(sorted(state)):
        tensor = state[name]
        i = torch.arange(tensor.numel(), dtype=torch.float64)
        base = torch.sin(phase + 0.37 * number + 1.7 * i + 0.003 * i**2)
        if tensor.dim() == 1:
            scales = name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "scale_factor"))
            values = 1 + 0.2 * base if scales or "layernorm" in name else 0.05 * base
        else:
            values = base * (0.3 if name.startswith("language_model.") else 0.15)
        tensor.copy_(values.view(tensor.shape))


@pytest.mark.parametrize("case", cases("openvla_forward"))
def test_forward_of_a_model_made_by_formula(case: Case) -> None:
    given = case.given
    config = config_of(given)
    model = OpenVLAModel(config).eval()
    fill_by_formula(model, given["phase"])
    tokens, actions = ActionTokens(config.text_vocab, given["n_action_bins"]), torch.tensor(given["actions"])
    prompts = pad_prompts(given["prompts"], given["max_len"], given["text"]["pad"], given["prompts"][0][0])
    size = given["tower"]["image"]
    numbers = torch.arange(len(actions) * 6 * size * size, dtype=torch.float64)
    pixels = torch.sin(given["phase"] + 0.013 * numbers).float().view(len(actions), 6, size, size)
    sampling = Sampling(given["temperature"], given["top_k"])
    with torch.no_grad():
        patches = model.embed_images(pixels)
        prompt = model.splice(prompts.input_ids, prompts.attention_mask, patches)
        hidden = model.states(prompt.extended(model.embed_tokens(actions)))
        every = bin_logprobs(model.logits(hidden[:, len(prompt) - 1 : -1]), tokens, sampling)
        greedy = generate(model, prompt, 7, lambda states: draw(
            bin_logprobs(model.logits(states), tokens, Sampling()), tokens, greedy=True))  # fmt: skip
    case.check({
        "projector_row0": patches[:, 0, :4], "projector_mean": patches.mean(),
        "action_logprobs": logprob_of(every, actions, tokens), "entropy": entropy(every),
        "hidden_last_prompt": hidden[:, len(prompt) - 1, :4], "greedy_tokens": greedy,
        "state_dict_keys": len(model.state_dict()),
    })  # fmt: skip


@pytest.mark.parametrize("case", cases("splice"))
def test_patches_are_spliced_into_the_mask(case: Case) -> None:
    mask = splice_mask(torch.tensor(case.given["mask"]).bool(), case.given["n_patches"])
    case.check({"mask": mask.long(), "position_ids": positions_of(mask)})


@cache
def published_state() -> dict[str, torch.Tensor]:
    """The full-size model without memory."""
    published = {"vision_backbone_id": "dinosiglip-vit-so-224px", "text_config": {"vocab_size": 32064}}
    with torch.device("meta"):
        return OpenVLAModel(FolderConfig.read(published)).state_dict()


@pytest.mark.parametrize("case", cases("state_dict"))
def test_layout_is_that_of_published_checkpoints(case: Case) -> None:
    given = case.given["config"]
    if given == "openvla-7b":
        state = published_state()
    else:
        with torch.device("meta"):
            state = OpenVLAModel(config_of(given)).state_dict()
    groups = case.expected.get("groups", case.expected.get("group_parameters", {}))
    counts = {group: [tensor.numel() for name, tensor in state.items() if name.startswith(group)] for group in groups}
    found = {
        "tensors": len(state), "parameters": sum(tensor.numel() for tensor in state.values()),
        "bf16_bytes": 2 * sum(tensor.numel() for tensor in state.values()),
        "groups": {group: len(sizes) for group, sizes in counts.items()},
        "group_parameters": {group: sum(sizes) for group, sizes in counts.items()},
        "shapes": {name: list(tensor.shape) for name, tensor in state.items()},
    }  # fmt: skip
    case.check(found, keys=[key for key in case.expected if not key.startswith("absent")])
    absent = (*case.expected.get("absent", ()), *case.expected.get("absent_prefix", ()))
    assert not [name for name in state if name.startswith(absent or ("nothing",))]
