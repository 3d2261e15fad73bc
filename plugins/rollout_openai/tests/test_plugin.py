"""The manifest, the options, and the folder of weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from plugrl.errors import ConfigError, WeightSyncError
from plugrl.plugins import load_plugins
from plugrl_rollout_openai.engine import mixed_seed
from plugrl_rollout_openai.options import ServerOptions
from plugrl_rollout_openai.plugin import plugin
from plugrl_rollout_openai.weights_folder import WeightsFolder, read_folder, shapes_of

CONFIG = {
    "model_type": "causal_lm", "precision": "fp32", "seed": 0,
    "config": {"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
               "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True},
    "tokenizer": {"type": "characters", "alphabet": "0123456789"},
}  # fmt: skip


def test_the_manifest_and_the_options_are_light() -> None:
    assert [entry.name for entry in plugin.rollouts] == ["openai"]
    code = (
        "import sys, plugrl_rollout_openai.plugin, plugrl_rollout_openai.options, plugrl_rollout_openai.surface;"
        "print([name for name in ('torch', 'aiohttp', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(ValueError, match="url"):
        ServerOptions.model_validate({"url": "http://a"})


def test_seeds_of_samples_do_not_meet() -> None:
    seeds = {mixed_seed(seed, number) for seed in range(60) for number in range(60)}
    assert len(seeds) == 3600 and all(0 <= seed < 2**63 for seed in seeds)
    assert mixed_seed(-5, 0) == mixed_seed(-5, 0) and mixed_seed(1, 2) != mixed_seed(2, 1)


def test_random_weights_are_written_for_an_engine_to_start_with(tmp_path: Path) -> None:
    load_plugins()
    folder = WeightsFolder(CONFIG, str(tmp_path), "x", bucket_bytes=1500)
    start = folder.start()
    assert (start / "config.json").is_file() and len(list(start.glob("*.safetensors"))) > 1
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(start)  # As any engine reads it.
    written = dict(read_folder(start))
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in written.items())
    assert shapes_of(start) == {name: tuple(tensor.shape) for name, tensor in written.items()}
    new = folder.write(((name, tensor + 1) for name, tensor in written.items()), 1)
    assert (new / "config.json").read_text() == (start / "config.json").read_text()
    folder.keep(new)
    assert folder.holds({name: tensor + 1 for name, tensor in written.items()}) and not folder.holds(written)
    with pytest.raises(WeightSyncError, match="version 2 do not fit the model, missing: model.embed_tokens.weight"):
        folder.write(list(written.items())[1:] if "embed" in next(iter(written)) else _without(written), 2)
    assert folder.current == new and new.is_dir()
    folder.close()
    folder.close()
    assert not folder.root.exists()


def _without(tensors: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor) for name, tensor in tensors.items() if "embed_tokens" not in name]


def test_a_stream_may_reuse_its_memory_and_must_not_repeat_itself(tmp_path: Path) -> None:
    folder = WeightsFolder({"path": "not/a/folder"}, str(tmp_path), "x")
    memory = torch.zeros(4)

    def stream():
        for value in (1.0, 2.0):
            memory.fill_(value)
            yield f"w{value:g}", memory[:3]

    found = dict(read_folder(folder.write(stream(), 1)))
    assert found["w1"].tolist() == [1.0] * 3 and found["w2"].tolist() == [2.0] * 3
    with pytest.raises(WeightSyncError, match="a came twice"):
        folder.write([("a", memory), ("a", memory)], 2)
    folder.close()


def test_a_folder_that_cannot_be_written_is_told_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"rollout\.options\.weights_dir: .*file cannot be written"):
        WeightsFolder({"path": None}, str(tmp_path / "file"), "x")


def test_the_keys_stand_in_the_page() -> None:
    page = Path(__file__).parents[1].joinpath("README.md").read_text().partition("## Configuration keys")[2]
    written = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(written) == sorted(ServerOptions.model_fields)
