"""From a configuration, whatever its type, to a policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import plugrl.models.factory as factory_module
import plugrl.models.registry as registry_module
from plugrl.config.schema.model import ModelConfig
from plugrl.errors import ConfigError, DuplicateRegistration, ModelNotFound, PluginError
from plugrl.models import get_model, get_processor, register_model
from plugrl.models.registry import model_category
from plugrl.platforms import reset, set_platform
from plugrl.plugins import Ledger, ModelEntry, Plugin, PluginRecord
from plugrl.plugins.ledger import current_ledger, set_current_ledger
from plugrl.registry import Registry

torch = pytest.importorskip("torch")

from plugrl.platforms.cpu import CpuPlatform  # noqa: E402


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Any]]:
    """An empty registry of models, on the cpu platform."""
    registry: Registry[Any] = Registry("model", check=registry_module.check_model, not_found=ModelNotFound)
    for module in (registry_module, factory_module):
        monkeypatch.setattr(module, "MODELS", registry)
    reset()
    set_platform(CpuPlatform())
    yield registry
    reset()


def build(cfg: Any, torch_dtype: Any) -> tuple[Any, Any]:
    """A builder that returns what it was given."""
    return cfg, torch_dtype


class TinyConfig(BaseModel):
    """The schema of a model type."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model_type: str
    hidden_size: int
    precision: str = "fp32"


def test_mapping_gives_attribute_and_item_access() -> None:
    register_model("tiny", build)
    cfg, dtype = get_model(
        {"model_type": "Tiny", "hidden_size": 8, "vision": {"sizes": [224, 224]}, "precision": "bf16"}
    )
    assert cfg.hidden_size == cfg["hidden_size"] == 8 and dtype is torch.bfloat16
    assert cfg.vision.sizes == [224, 224] and dict(cfg.vision) == {"sizes": [224, 224]}
    assert cfg.get("absent", 3) == 3
    with pytest.raises(AttributeError, match=r"hidden_sise.*hidden_size"):
        _ = cfg.hidden_sise


def test_omegaconf_configuration() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    register_model("tiny", build)
    source = {
        "model_type": "tiny",
        "precision": "fp32",
        "width": 4,
        "double": "${width}",
        "sizes": [1, 2],
        "is_lora": False,
    }
    cfg, dtype = get_model(omegaconf.OmegaConf.create(source))
    assert (cfg.double, cfg.is_lora, cfg.sizes, dtype) == (4, False, [1, 2], torch.float32)


def test_own_configuration() -> None:
    register_model("tiny", build)
    given = ModelConfig(model_type="tiny", precision="fp16")
    cfg, dtype = get_model(given)
    assert cfg is given and dtype is torch.float16


def test_schema_validates_what_the_builder_gets() -> None:
    register_model("tiny", build, schema=TinyConfig)
    cfg, _ = get_model({"model_type": "tiny", "hidden_size": "8"})
    assert isinstance(cfg, TinyConfig) and cfg.hidden_size == 8
    assert get_model(cfg)[0] is cfg
    with pytest.raises(ConfigError, match=r"model\.hidden_size"):
        get_model({"model_type": "tiny", "hidden_size": "many"})
    with pytest.raises(ConfigError, match=r"model\.hiden_size"):
        get_model({"model_type": "tiny", "hidden_size": 8, "hiden_size": 8})


@pytest.mark.parametrize("cfg", [{}, {"model_type": None}, {"model_type": " "}, 3])
def test_without_a_model_type(cfg: Any) -> None:
    with pytest.raises(ConfigError, match="model"):
        get_model(cfg)


def test_precision_auto_asks_the_platform_and_an_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    register_model("tiny", build)
    monkeypatch.setattr(CpuPlatform, "preferred_dtype", lambda self: "bf16")
    assert get_model({"model_type": "tiny"})[1] is torch.bfloat16
    assert get_model({"model_type": "tiny", "precision": "auto"}, torch.float32)[1] is torch.float32
    assert get_model({"model_type": "tiny"}, "fp16")[1] is torch.float16
    with pytest.raises(ConfigError, match=r"model\.precision.*fp8"):
        get_model({"model_type": "tiny", "precision": "fp8"})


def test_platform_patches_are_applied_before_the_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(CpuPlatform, "apply_model_patches", lambda self, model_type: calls.append(model_type))
    register_model("tiny", lambda cfg, dtype: calls.append("built"))
    get_model({"model_type": "tiny"})
    assert calls == ["tiny", "built"]


def test_unknown_type_names_candidates_and_the_nearest() -> None:
    register_model("causal_lm", build)
    with pytest.raises(ModelNotFound, match=r'"casual_lm".*Did you mean "causal_lm".*Known: causal_lm'):
        get_model({"model_type": "casual_lm"})


def test_unknown_type_gives_the_reason_of_the_plugin_that_failed() -> None:
    manifest = Plugin(
        name="vla",
        api=1,
        requires_core=">=0",
        summary="a model",
        models=(ModelEntry(model_type="openvla", category="embodied", target="vla.m:build"),),
    )
    record = PluginRecord(
        name="vla", value="vla:plugin", state="failed", phase="commit", reason="ImportError: no timm", manifest=manifest
    )
    before = current_ledger()
    set_current_ledger(Ledger(records=(record,)))
    try:
        with pytest.raises(ModelNotFound, match=r"vla failed in commit: ImportError: no timm.*doctor"):
            get_model({"model_type": "openvla"})
    finally:
        set_current_ledger(before)


def test_broken_target_keeps_its_reason(models: Registry[Any]) -> None:
    models.register_target("tiny", "no_such_package.models:build", meta={"category": "language"})
    for _ in range(2):
        with pytest.raises(PluginError, match="no_such_package"):
            get_model({"model_type": "tiny"})


def test_a_model_type_that_trains_no_adapter_refuses_the_section() -> None:
    register_model("tiny", build)
    with pytest.raises(ConfigError, match=r'model\.lora: "tiny" trains no adapters'):
        get_model(ModelConfig(model_type="tiny", lora={"rank": 4}))
    for lora in (None, {"rank": 0}, {"enable": False}):
        assert get_model(ModelConfig(model_type="tiny", lora=lora))[0].model_type == "tiny"

    class Adapted:
        def adapter_config(self) -> dict[str, int]:
            return {"r": 4}

    register_model("adapted", lambda cfg, dtype: Adapted())
    assert isinstance(get_model(ModelConfig(model_type="adapted", lora={"rank": 4})), Adapted)


def test_duplicates_categories_and_builders() -> None:
    register_model("tiny", build, category="embodied")
    register_model("tiny", build, category="embodied")
    assert model_category("tiny") == "embodied"
    other = lambda cfg, dtype: None  # noqa: E731
    with pytest.raises(DuplicateRegistration, match="tiny"):
        register_model("tiny", other)
    register_model("tiny", other, force=True)
    assert get_model({"model_type": "tiny"}) is None
    with pytest.raises(ConfigError, match=r"robotic.*language, value, embodied"):
        register_model("other", build, category="robotic")
    with pytest.raises(PluginError, match="builder"):
        register_model("other", "no builder")  # type: ignore[arg-type]


def test_processor_comes_without_the_weights() -> None:
    register_model("tiny", build, processor=lambda cfg: ("processor", cfg.alphabet))
    assert get_processor({"model_type": "tiny", "alphabet": "ab"}) == ("processor", "ab")
    register_model("blind", build)
    with pytest.raises(ConfigError, match="blind"):
        get_processor({"model_type": "blind"})
    with pytest.raises(ModelNotFound):
        get_processor({"model_type": "nothing"})
