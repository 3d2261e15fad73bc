"""A process without plugins, with stand-ins for what the plugins of a usual installation register."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugrl.config.schema import ModelConfig, Section
from plugrl.plugins.loader import isolated
from plugrl.registry import registry_of


class EngineSection(Section):
    """Settings of a pretended engine."""

    visible_devices: str = "all"
    """Devices."""

    offload: bool = False
    """Offload."""


class TinyModelConfig(ModelConfig):
    """A model type with keys of its own."""

    layers: int = 2
    """Layers."""

    config: dict[str, Any] = {}
    """A free mapping."""


class OptionsSection(Section):
    """Options of a pretended rollout."""

    chunk: int = 8
    """Chunk."""


class FakeSection:
    """The shape of a ConfigSection."""

    def __init__(self, key: str, schema: str | type, owners: tuple[str, ...] = ("actor", "critic", "ref")) -> None:
        self.key, self.schema, self.owners = key, schema, owners
        self.aliases = (("speed.off", f"{key}.offload"), ("speed", key), ("{owner}.engine", "strategy"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register a model, a value model, an engine and a rollout as plugins would."""
    monkeypatch.setenv("PLUGRL_PLUGINS", "")
    with isolated():
        model, engine, rollout = registry_of("model"), registry_of("engine"), registry_of("rollout")
        model.register_target("tiny", "nowhere:build", meta={"schema": TinyModelConfig, "category": "language"})
        model.register_target("tiny_value", "nowhere:value", meta={"schema": TinyModelConfig, "category": "value"})
        sections = (FakeSection("fake_config", EngineSection),)
        for kind in ("language_model", "value_model"):
            engine.register_target((kind, "fsdp2", "*", None), f"nowhere:{kind}", meta={"sections": sections})
        rollout.register_target("fast", "nowhere:Fast", meta={"schema": OptionsSection})
        yield


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return a function that writes a configuration and returns its path."""

    def _write(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return _write


BASE = """
model: {model_type: tiny}
rollout: {name: fast, n: 4}
data: {source: arithmetic, train_batch_size: 64}
actor: {ppo_mini_batch_size: 32}
reward: {name: exact_match}
algorithm: {adv_estimator: grpo}
"""
