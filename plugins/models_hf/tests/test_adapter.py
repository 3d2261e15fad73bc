"""LoRA: names as PEFT writes them, merged weights, files that PEFT reads and that it wrote, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from plugrl.config.schema import ModelConfig
from plugrl.errors import CheckpointError, ConfigError
from plugrl.models import get_model
from plugrl.plugins import load_plugins
from plugrl_models_hf.adapter_files import merge_into
from plugrl_models_hf.config import CausalLMConfig

# PEFT's own model class asks transformers for names that are on their way out.
_PEFTS_OWN = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


@pytest.fixture(autouse=True, scope="module")
def _plugins() -> None:
    load_plugins()


TARGETS = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def _shaken(policy: Any) -> Any:
    """The policy with random values in all that is trained, so that its adapter does something."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return policy.eval()


def _published(policy: Any) -> dict[str, torch.Tensor]:
    return {new: tensor for name, tensor in policy.state_dict().items() if (new := policy.published_name(name))}


def _saved(policy: Any, folder: Path) -> Path:
    policy.save_pretrained(folder, {name: t for name, t in _published(policy).items() if policy.is_saved(name)})
    return folder


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 15).view(2, 6)).logits


@pytest.fixture
def base(model_section, tmp_path: Path) -> Path:
    """A folder of a tiny model, untied so that the head may be trained too."""
    policy = get_model(model_section(config={"tie_word_embeddings": False}))
    policy.save_pretrained(tmp_path / "base", _published(policy))
    return tmp_path / "base"


def _section(base: Path, **lora: Any) -> dict[str, Any]:
    return {"model_type": "causal_lm", "path": str(base), "precision": "fp32", "lora": {"rank": 4, **lora}}


# --------------------------------------------------------------------- what it is
def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(base: Path, text_batch) -> None:
    plain, policy = get_model({"model_type": "causal_lm", "path": str(base)}, "fp32"), get_model(_section(base), "fp32")
    assert plain.adapter_config() is None and plain.is_saved("lm_head.weight")
    assert torch.equal(_logits(plain.model), _logits(policy.model))
    assert policy.lora_targets() == plain.lora_targets() == TARGETS
    trained = {policy.published_name(name) for name, p in policy.named_parameters() if p.requires_grad}
    assert trained == {
        f"base_model.model.model.layers.{layer}.{part}.{target}.lora_{side}.weight"
        for layer in (0, 1)
        for target in TARGETS
        for part in [("mlp" if target in ("down_proj", "gate_proj", "up_proj") else "self_attn")]
        for side in "AB"
    }
    assert trained == {name for name in _published(policy) if policy.is_saved(name)}
    frozen = {name for name in _published(policy) if not policy.is_saved(name)}
    assert frozen == set(_published(plain))
    assert policy.wrap_units() == plain.wrap_units()
    # Packing, which tries the model before it trusts itself, is still on.
    assert policy._packs and plain._packs
    policy(forward_inputs=text_batch)["logprobs"].sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in policy.parameters())


def test_matrices_start_from_the_models_seed_whatever_was_drawn_before(base: Path) -> None:
    def start(seed: int, init: str = "gaussian") -> torch.Tensor:
        torch.rand(seed + 1)
        section = {**_section(base, init=init, alpha=8, target_modules=["q_proj"]), "seed": seed}
        return _published(get_model(section))["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]

    torch.manual_seed(1)
    expected = torch.random.get_rng_state()
    first = start(3)
    torch.random.set_rng_state(expected)
    torch.rand(4)
    state = torch.random.get_rng_state()
    torch.random.set_rng_state(expected)
    assert torch.equal(first, start(3)) and torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(first, start(4)) and not torch.equal(first, start(3, "default"))
    assert first.std().item() == pytest.approx(1 / 4, rel=0.3)  # gaussian: 1 / rank
    random = get_model(_section(base, init="random", target_modules=["q_proj"]))
    assert all(tensor.abs().max() > 0 for name, tensor in _published(random).items() if random.is_saved(name))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_base_keeps_its_type_and_the_matrices_are_fp32(base: Path, dtype: str) -> None:
    policy = get_model({**_section(base), "precision": dtype})
    found = {p.requires_grad: p.dtype for p in policy.parameters()}
    assert found == {True: torch.float32, False: torch.float32 if dtype == "fp32" else torch.bfloat16}
    assert _logits(policy.model).dtype == found[False]


def test_without_its_adapter_the_policy_is_the_base_and_nothing_else_changes(base: Path) -> None:
    plain = get_model({"model_type": "causal_lm", "path": str(base), "precision": "fp32"})
    policy = _shaken(get_model(_section(base, modules_to_save=["lm_head"])))
    flags = [p.requires_grad for p in policy.parameters()]
    changed = _logits(policy.model)
    with policy.adapter_disabled():
        assert torch.equal(_logits(policy.model), _logits(plain.model))
        assert [p.requires_grad for p in policy.parameters()] == flags
    assert torch.equal(_logits(policy.model), changed) and not torch.allclose(changed, _logits(plain.model))


def test_a_head_with_an_adapter_counts_in_log_probabilities(base: Path, text_batch) -> None:
    for options in ({"target_modules": ["lm_head"]}, {"modules_to_save": ["lm_head"]}):
        policy = _shaken(get_model(_section(base, **options)))
        merged = dict(policy.merged_tensors(_published(policy).items()))
        plain = get_model({"model_type": "causal_lm", "path": str(base), "precision": "fp32"})
        plain.load_published(merged.items())
        got, wanted = (model.eval()(forward_inputs=text_batch)["logprobs"] for model in (policy, plain))
        assert torch.allclose(got, wanted, atol=1e-5) and got.abs().max() > 0


# --------------------------------------------------------------------- merging
@pytest.mark.parametrize("alpha", [4.0, 12.0])
def test_merged_weights_are_base_plus_scaled_product_and_compute_the_same(base: Path, alpha: float) -> None:
    policy = _shaken(get_model(_section(base, alpha=alpha, modules_to_save=["lm_head"])))
    tensors = _published(policy)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    merged = dict(policy.merged_tensors(tensors.items()))
    plain = get_model({"model_type": "causal_lm", "path": str(base), "precision": "fp32"})
    assert list(merged) == list(_published(plain)) or set(merged) == set(_published(plain))
    for name, weight in merged.items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{path}.lora_A.weight" in tensors:
            product = tensors[f"{path}.lora_B.weight"].double() @ tensors[f"{path}.lora_A.weight"].double()
            exact = tensors[name].double() + alpha / 4 * product
            assert (weight.double() - exact).abs().max() <= 2e-6 * exact.abs().max()
        elif name == "lm_head.weight":
            assert torch.equal(weight, tensors["base_model.model.lm_head.weight"])
        else:
            assert torch.equal(weight, tensors[name])
    plain.load_published(merged.items())
    assert torch.allclose(_logits(plain.model), _logits(policy.model), atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def test_a_stream_that_lacks_a_matrix_is_an_error(base: Path) -> None:
    policy = get_model(_section(base))
    tensors = {name: tensor for name, tensor in _published(policy).items() if "q_proj.lora_B" not in name}
    with pytest.raises(CheckpointError, match="self_attn.q_proj"):
        list(policy.merged_tensors(tensors.items()))


# --------------------------------------------------------------------- files
@_PEFTS_OWN
def test_an_adapter_folder_holds_the_adapter_alone_and_loads_back_to_the_same_bits(base: Path, tmp_path: Path) -> None:
    policy = _shaken(get_model(_section(base, alpha=6, modules_to_save=["lm_head"])))
    folder = _saved(policy, tmp_path / "adapter")
    assert not list(folder.glob("model*.safetensors"))
    stored = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert all(name.startswith("base_model.model.") and ".default" not in name for name in stored)
    assert (config["r"], config["lora_alpha"], config["modules_to_save"]) == (4, 6, ["lm_head"])
    assert config["base_model_name_or_path"] == str(base) and config["target_modules"] == list(TARGETS)

    # By its folder alone; by the base with the adapter beside it; and by PEFT's own loader.
    by_folder = {"model_type": "causal_lm", "path": str(folder), "precision": "fp32"}
    beside = {**by_folder, "path": str(base), "lora": {"path": str(folder)}}
    for section in (by_folder, beside):
        again = get_model(section)
        assert torch.equal(_logits(again.eval().model), _logits(policy.model))
        assert {p.requires_grad for n, p in again.named_parameters() if "lora_" in n} == {True}
        assert sum("lora_A" in name for name in again.state_dict()) == sum("lora_A" in n for n in policy.state_dict())
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(model, str(folder))
    assert torch.equal(_logits(theirs.eval()), _logits(policy.model))


@_PEFTS_OWN
def test_an_adapter_that_peft_wrote_is_taken_up(base: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    theirs = peft.get_peft_model(model, config)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = get_model({"model_type": "causal_lm", "path": str(tmp_path / "adapter"), "precision": "fp32"})
    assert torch.equal(_logits(ours.eval().model), _logits(theirs.eval()))
    merged = dict(ours.merged_tensors(_published(ours).items()))
    wanted = theirs.merge_and_unload().state_dict()
    assert all(torch.allclose(merged[name], wanted[name], atol=1e-6) for name in merged)


def test_merge_makes_a_plain_model_of_an_adapter_and_it_is_saved_as_one(base: Path, tmp_path: Path) -> None:
    policy = _shaken(get_model(_section(base, modules_to_save=["lm_head"])))
    folder = _saved(policy, tmp_path / "adapter")
    merged = get_model({"model_type": "causal_lm", "path": str(folder), "precision": "fp32", "lora": {"enable": False}})
    assert merged.adapter_config() is None and all("lora" not in name for name in merged.state_dict())
    wanted = dict(policy.merged_tensors(_published(policy).items()))
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in _published(merged).items())
    merged.save_pretrained(tmp_path / "full", _published(merged))
    full = AutoModelForCausalLM.from_pretrained(tmp_path / "full", dtype=torch.float32)
    assert torch.equal(_logits(full), _logits(merged.eval().model))


def test_settings_say_what_is_trained_and_how_the_policy_is_had_without_adapter(base: Path, tmp_path: Path) -> None:
    folder = str(_saved(get_model(_section(base)), tmp_path / "adapter"))
    plain = ModelConfig(path=str(base))
    assert not plain.trains_adapter and plain.without_adapter() == plain
    fresh = ModelConfig(path=str(base), lora={"rank": 4})
    assert fresh.trains_adapter and fresh.without_adapter().lora.enable is False
    assert not ModelConfig(path=str(base), lora={"rank": 0}).trains_adapter
    assert not ModelConfig(path=str(base), lora={"enable": False, "rank": 8}).trains_adapter
    # What a folder holds says what it is, not the keys.
    held = ModelConfig(path=folder)
    assert held.trains_adapter and held.without_adapter().lora.enable == "merge"
    assert fresh.from_folder(folder).lora.path == folder and fresh.from_folder(folder).path == str(base)
    assert fresh.from_folder(str(base)).path == str(base)
    assert ModelConfig(path=str(base), lora={"enable": False}).from_folder(folder).lora.enable == "merge"
    built = CausalLMConfig(config={"model_type": "qwen3"}, tokenizer="somewhere").from_folder(folder)
    assert built.config == {"model_type": "qwen3"} and built.lora.path == folder


def test_a_base_that_was_built_needs_its_configuration(model_section, tmp_path: Path) -> None:
    section = model_section(lora={"rank": 2, "init": "random"})
    policy = get_model(section).eval()
    folder = _saved(policy, tmp_path / "adapter")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    with pytest.raises(ConfigError, match=r"names no base.*model\.lora\.path"):
        get_model({"model_type": "causal_lm", "path": str(folder)})
    again = get_model(model_section(lora={"path": str(folder)}))
    assert torch.equal(_logits(again.eval().model), _logits(policy.model))


def test_a_value_model_trains_its_head_beside_the_adapter(model_section, text_batch, tmp_path: Path) -> None:
    section = {**model_section(), "model_type": "causal_lm_value", "lora": {"rank": 2}}
    policy = get_model(section)
    assert torch.equal(policy(forward_inputs=text_batch)["values"], torch.zeros(3, 4))
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    head = {name for name in trained if "lora_" not in name}
    assert head and head <= set(policy.critic_parameters())
    folder = _saved(_shaken(policy), tmp_path / "value")
    again = get_model({**section, "lora": {"path": str(folder)}}).eval()
    assert torch.equal(*(model(forward_inputs=text_batch)["values"] for model in (policy, again)))
    # The adapter of a policy has no value head: it starts at zero.
    of_policy = _saved(_shaken(get_model(model_section(lora={"rank": 2}))), tmp_path / "policy")
    fresh = get_model({**section, "lora": {"path": str(of_policy)}}).eval()
    assert torch.equal(fresh(forward_inputs=text_batch)["values"], torch.zeros(3, 4))


# --------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"target_modules": ["query", "key"]}, r"target_modules: the model has no key, query\..*down_proj, gate_proj"),
        ({"target_modules": "query.*"}, r"target_modules: .*query.*down_proj, gate_proj"),
        ({"target_modules": ["input_layernorm"]}, r"target_modules: .*not supported"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, r"target_modules: model\.embed_tokens is no linear layer"),
        ({"modules_to_save": ["score"]}, r"modules_to_save: the model has no 'score'.*lm_head"),
        ({"rank": -1}, r"rank"),
        ({"enable": True, "rank": 0}, r"rank is 0"),
        ({"enable": "merge"}, r"merge needs the path"),
        ({"method": "ia3"}, r"lora.method"),
    ],
)
def test_what_does_not_fit_is_named(base: Path, lora: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_model(_section(base, **lora))


def test_tied_modules_get_no_adapter(model_section) -> None:
    for lora in ({"target_modules": ["lm_head"]}, {"modules_to_save": ["embed_tokens"]}):
        with pytest.raises(ConfigError, match=r"model\.lora: .* shares its weight with"):
            get_model(model_section(lora=lora))


def test_some_unknown_targets_are_told_and_the_others_used(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        policy = get_model(_section(base, target_modules=["q_proj", "fc1"]))
    assert "fc1" in caplog.text and policy.lora_targets() == ("q_proj",)
    assert get_model(_section(base, target_modules="all-linear")).lora_targets() == TARGETS
    assert get_model(_section(base, target_modules=r".*\.1\..*_proj")).lora_targets() == TARGETS


def test_folders_that_are_no_adapter_for_this_model_are_refused(base: Path, tmp_path: Path, model_section) -> None:
    folder = _saved(get_model(_section(base)), tmp_path / "adapter")
    with pytest.raises(ConfigError, match=r"rank: 8, but the adapter in .* has 4"):
        get_model(_section(base, path=str(folder), rank=8))
    with pytest.raises(CheckpointError, match="no adapter_config.json"):
        get_model(_section(base, path=str(base)))
    wide = model_section(config={"tie_word_embeddings": False, "hidden_size": 16}, lora={"path": str(folder)})
    with pytest.raises(CheckpointError, match="has shape"):
        get_model(wide)
    shallow = model_section(config={"tie_word_embeddings": False, "num_hidden_layers": 1})
    with pytest.raises(CheckpointError, match="no place for"):
        merge_into(get_model(shallow).model, folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "pytorch_model_fsdp_0").mkdir()
    with pytest.raises(CheckpointError, match="plugrl checkpoint convert"):
        get_model(_section(base, path=str(folder)))
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(CheckpointError, match="use_dora"):
        get_model(_section(base, path=str(folder)))
