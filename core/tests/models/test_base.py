"""What BasePolicy itself does: dispatch, declarations, weights under published names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from plugrl.errors import CheckpointError, UnsupportedCapability  # noqa: E402
from plugrl.models import BasePolicy  # noqa: E402


class Tied(BasePolicy):
    """Two tied layers, a buffer and one forward beside the default."""

    _no_split_modules = ["Block"]

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(3, 3, bias=False)
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1))

    def default_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"default": forward_inputs, **kwargs}

    def sft_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"sft": forward_inputs}

    def published_name(self, name: str) -> str | None:
        return None if name == "head.weight" else f"model.{name}"


def test_forward_dispatches_by_type() -> None:
    policy = Tied()
    assert policy(forward_inputs={"a": 1}, temperature=2.0) == {"default": {"a": 1}, "temperature": 2.0}
    assert policy(forward_type="sft", forward_inputs={}) == {"sft": {}}
    assert policy.forward_types() == ("default", "sft")


@pytest.mark.parametrize("forward_type", ["sac", "", "_slow"])
def test_unknown_forward_type_lists_those_there_are(forward_type: str) -> None:
    with pytest.raises(UnsupportedCapability, match="default, sft"):
        Tied()(forward_type=forward_type)


def test_default_forward_is_required() -> None:
    with pytest.raises(TypeError, match="default_forward"):
        type("Empty", (BasePolicy,), {})()


def test_declarations_have_defaults() -> None:
    policy = Tied()
    assert policy.wrap_units() == ("Block",)
    assert policy.capabilities() == {"logprobs", "entropy", "values", "sft"}
    acting = type("Acting", (Tied,), {"predict_action_batch": lambda self, env_obs: ([], {})})()
    assert "actions" in acting.capabilities()
    with pytest.raises(UnsupportedCapability, match="Tied"):
        policy.predict_action_batch({})
    with pytest.raises(UnsupportedCapability, match="Tied"):
        policy.predict_values({})


def test_published_weights_come_back() -> None:
    weight, scale = torch.randn(3, 3), torch.full((1,), 2.0)
    policy = Tied()
    policy.load_published(iter([("model.embed.weight", weight), ("model.scale", scale)]))
    assert torch.equal(policy.head.weight, weight) and torch.equal(policy.scale, scale)
    assert policy.embed.weight.requires_grad


def test_strict_loading_names_what_does_not_fit() -> None:
    scale = ("model.scale", torch.ones(1))
    with pytest.raises(CheckpointError, match=r"did not receive model\.embed\.weight"):
        Tied().load_published([scale])
    with pytest.raises(CheckpointError, match=r"no parameter 'model\.head\.weight'"):
        Tied().load_published([scale, ("model.head.weight", torch.ones(3, 3))])
    with pytest.raises(CheckpointError, match=r"model\.embed\.weight has shape \(2, 3\), expected \(3, 3\)"):
        Tied().load_published([scale, ("model.embed.weight", torch.ones(2, 3))])
    Tied().load_published([("other", torch.ones(1))], strict=False)


def test_save_pretrained_writes_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"model.embed.weight": torch.randn(3, 3).t()}
    Tied().save_pretrained(tmp_path / "new", state)
    assert torch.equal(
        safetensors.load_file(tmp_path / "new" / "model.safetensors")["model.embed.weight"], state["model.embed.weight"]
    )
