"""`plugrl checkpoint merge-adapter` writes a model that transformers loads and that answers as base and adapter do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from plugrl.cli.app import run
from plugrl.models import get_model
from plugrl.plugins import load_plugins

pytest.importorskip("peft")


def test_a_whole_model_with_the_adapter_in_it(
    model_section, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_plugins()
    base = get_model(model_section(config={"tie_word_embeddings": False}))
    base.save_pretrained(tmp_path / "base", {base.published_name(n): t for n, t in base.state_dict().items()})
    section = {"model_type": "causal_lm", "path": str(tmp_path / "base"), "precision": "fp32"}
    policy = get_model({**section, "lora": {"rank": 4, "init": "random"}})
    saved = {new: t for name, t in policy.state_dict().items() if policy.is_saved(new := policy.published_name(name))}
    policy.save_pretrained(tmp_path / "000001" / "pretrained_model", saved)
    config = {"model": section, "data": {"source": "arithmetic"}, "reward": {"name": "exact_match"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    arguments = ["checkpoint", "merge-adapter", str(tmp_path / "run.yaml"), str(tmp_path / "000001")]
    assert run([*arguments, str(tmp_path / "whole")]) == 0, capsys.readouterr().err
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    ids = torch.arange(3, 15).view(2, 6)
    with torch.no_grad():
        expected = policy.eval().model(input_ids=ids).logits
        torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(base.eval().model(input_ids=ids).logits, expected, atol=1e-3)
    assert run([*arguments, str(tmp_path / "whole")]) == 1 and "is there already" in capsys.readouterr().err
