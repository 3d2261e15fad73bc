"""Registering engines and finding one (rules EN-1 to EN-9)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from plugrl.engines import BaseEngine, EngineRegistry  # noqa: E402
from plugrl.errors import DuplicateRegistration, EngineNotFound, PluginError  # noqa: E402
from plugrl.plugins import ConfigSection, EngineEntry, Ledger, Plugin, PluginRecord  # noqa: E402
from plugrl.plugins.ledger import current_ledger, set_current_ledger  # noqa: E402
from plugrl.registry import Origin, install_command  # noqa: E402

pytestmark = pytest.mark.usefixtures("engines")
Make = Callable[..., type[BaseEngine]]
Use = Callable[..., None]
LM = "language_model"


def test_exact_then_device_then_generic_vendor_then_any_device(make_engine: Make, on_platform: Use) -> None:
    on_platform("gpux", "acme", generic="nova")
    levels = [("*", None), ("gpux", "nova"), ("gpux", None), ("gpux", "acme")]
    for device, vendor in levels:
        cls = EngineRegistry.register(LM, "fsdp2", device=device, vendor=vendor)(make_engine())
        assert EngineRegistry.get_engine_cls(LM, "fsdp2") is cls


def test_result_does_not_depend_on_the_order(make_engine: Make, on_platform: Use, engines: Any) -> None:
    on_platform("gpux", "acme")
    classes = {key: make_engine() for key in (("*", None), ("gpux", None), ("gpux", "acme"), ("gpux", "zeta"))}
    for order in itertools.permutations(classes):
        with engines.temporary():
            for device, vendor in order:
                EngineRegistry.register(LM, "fsdp2", device=device, vendor=vendor)(classes[device, vendor])
            assert EngineRegistry.get_engine_cls(LM, "fsdp2") is classes["gpux", "acme"]


def test_never_another_vendors_engine(make_engine: Make, on_platform: Use) -> None:
    on_platform("gpux", "acme")
    EngineRegistry.register(LM, "fsdp2", device="gpux", vendor="nova")(make_engine())
    with pytest.raises(EngineNotFound, match=r"for gpux \(acme\).*Tried: \(gpux, acme\), gpux, \*.*\(gpux, nova\)"):
        EngineRegistry.get_engine_cls(LM, "fsdp2")


def test_unknown_vendor_of_an_imitating_platform_gets_the_generic_one(
    make_engine: Make, on_platform: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_platform("gpux", "acme", generic="nova")
    cls = EngineRegistry.register(LM, "fsdp2", device="gpux", vendor="nova")(make_engine())
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "somebody")
    assert EngineRegistry.get_engine_cls(LM, "fsdp2") is cls


def test_variables_are_trimmed_and_case_insensitive(
    make_engine: Make, on_platform: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_platform("gpux", "acme")
    here = EngineRegistry.register(LM, "megatron", device="gpux", vendor="acme")(make_engine())
    there = EngineRegistry.register(LM, "megatron", device="tpx", vendor="nova")(make_engine())
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "  TPX ")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "Nova")
    assert EngineRegistry.get_engine_cls(LM, "megatron") is there
    assert EngineRegistry.get_engine_cls(LM, "megatron", device="gpux", vendor="acme") is here
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "  ")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "")
    assert EngineRegistry.get_engine_cls(LM, "megatron") is here


def test_lists_give_the_product(make_engine: Make) -> None:
    register = EngineRegistry.register([LM, "value_model"], ["fsdp", "fsdp2"], device=["gpux", "tpx"], vendor="acme")
    cls = register(make_engine())
    for model_type, backend, device in itertools.product((LM, "value_model"), ("fsdp", "fsdp2"), ("gpux", "tpx")):
        assert EngineRegistry.get_engine_cls(model_type, backend, device=device, vendor="acme") is cls
    assert len(EngineRegistry.table()) == 8


@pytest.mark.parametrize("argument", ["model_type", "backend", "device", "vendor"])
@pytest.mark.parametrize("value", [[], "", ["a", " "]])
def test_an_empty_name_is_an_error_naming_the_argument(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"model_type": LM, "backend": "fsdp2", argument: value}
    with pytest.raises(ValueError, match=argument):
        EngineRegistry.register(**arguments)


def test_a_conflict_in_one_key_registers_none(make_engine: Make, engines: Any) -> None:
    first = EngineRegistry.register(LM, "fsdp2")(make_engine())
    with pytest.raises(DuplicateRegistration, match="fsdp2"):
        EngineRegistry.register(LM, ["ddp", "fsdp2"])(make_engine())
    assert [key[1] for key in engines.keys()] == ["fsdp2"]
    EngineRegistry.register(LM, ["ddp", "fsdp2"])(first)
    assert [key[1] for key in engines.keys()] == ["ddp", "fsdp2"]


def test_force_overrides_and_shows_in_the_table(make_engine: Make) -> None:
    EngineRegistry.register(LM, "fsdp2")(make_engine())
    second = EngineRegistry.register(LM, "fsdp2", force=True)(make_engine())
    assert EngineRegistry.get_engine_cls(LM, "fsdp2", device="gpux") is second
    assert len(EngineRegistry.table()[0]["overrides"]) == 1


def test_only_complete_engines_are_accepted() -> None:
    with pytest.raises(PluginError, match="BaseEngine"):
        EngineRegistry.register(LM, "fsdp2")(int)
    with pytest.raises(PluginError, match=r"forward_backward_batch.*save_checkpoint"):
        EngineRegistry.register(LM, "fsdp2")(type("Incomplete", (BaseEngine,), {}))
    assert EngineRegistry.table() == []


def test_a_target_is_checked_at_first_use(engines: Any) -> None:
    engines.register_target((LM, "fsdp2", "*", None), "plugrl.engines.base:BaseEngine")
    with pytest.raises(PluginError, match="optimizer_step"):
        EngineRegistry.get_engine_cls(LM, "fsdp2", device="gpux")


def test_unknown_model_type_and_backend_list_the_known_ones(make_engine: Make) -> None:
    EngineRegistry.register(LM, ["ddp", "fsdp2"])(make_engine())
    with pytest.raises(EngineNotFound, match=r'"language_modle".*"language_model"'):
        EngineRegistry.get_engine_cls("language_modle", "fsdp2", device="gpux")
    with pytest.raises(EngineNotFound, match=r'"fsdp1".*"fsdp2".*Known: ddp, fsdp2'):
        EngineRegistry.get_engine_cls(LM, "fsdp1", device="gpux")


def test_a_fallback_is_logged_once(make_engine: Make, on_platform: Use, caplog: pytest.LogCaptureFixture) -> None:
    on_platform("gpux", "acme")
    EngineRegistry.register(LM, "fsdp2")(make_engine())
    with caplog.at_level(logging.INFO):
        EngineRegistry.get_engine_cls(LM, "fsdp2")
        EngineRegistry.get_engine_cls(LM, "fsdp2")
    lines = [record.getMessage() for record in caplog.records if record.name == "plugrl.engines.registry"]
    assert lines == ["Engine language_model/fsdp2 for (gpux, acme): *"]


def test_explain_shows_the_steps(make_engine: Make) -> None:
    EngineRegistry.register(LM, "fsdp2")(make_engine("Generic"))
    found = EngineRegistry.explain(LM, "FSDP2", device="gpux", vendor="acme")
    assert [(step.what, step.found) for step in found.steps] == [
        ("device and vendor", False),
        ("device", False),
        ("any device", True),
    ]
    assert "Generic" in found.lines()[-1]
    assert found.to_dict()["engine"]["key"] == [LM, "fsdp2", "*", None]
    missing = EngineRegistry.explain(LM, "nothing", device="gpux", vendor="acme")
    assert missing.entry is None and missing.lines()[-1] == "-> no engine"


def test_a_failed_plugin_with_the_exact_key_is_an_error_not_a_fallback(make_engine: Make) -> None:
    manifest = Plugin(
        name="acme",
        api=1,
        requires_core=">=0",
        summary="engines of acme",
        engines=(EngineEntry(model_type=LM, backend="fsdp2", device="gpux", vendor="Acme", target="a.b:C"),),
    )
    record = PluginRecord(
        name="acme", value="a.b:p", state="failed", phase="stage", reason="OSError: wrong ABI", manifest=manifest
    )
    EngineRegistry.register(LM, "fsdp2")(make_engine())
    before = current_ledger()
    set_current_ledger(Ledger(records=(record,)))
    try:
        with pytest.raises(EngineNotFound, match=r"acme failed in stage: OSError: wrong ABI"):
            EngineRegistry.get_engine_cls(LM, "fsdp2", device="gpux", vendor="acme")
        assert EngineRegistry.get_engine_cls(LM, "fsdp2", device="gpux", vendor="other")
    finally:
        set_current_ledger(before)


def test_new_passes_arguments_through(make_engine: Make, on_platform: Use) -> None:
    on_platform("gpux", "acme")
    EngineRegistry.register(LM, "fsdp2")(make_engine())
    engine = EngineRegistry.new(LM, "fsdp2", "model", "engine", optimizer_config="optimizer", checkpoint_config=None)
    assert (engine.model_config, engine.engine_config) == ("model", "engine")
    assert (engine.optimizer_config, engine.checkpoint_config) == ("optimizer", None)


def test_an_engine_whose_needs_are_missing_is_passed_over_visibly(
    make_engine: Make, engines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one takes its place with a warning; without another the error has the command that installs it."""
    needs = {"needs": ("plugrl_engine_absent",), "origin": Origin(distribution="plugrl-platform-acme", version="1.0")}
    engines.register_target((LM, "big", "gpux", "acme"), "a.b:C", **needs)
    with pytest.raises(EngineNotFound, match=r"\(gpux, acme\): plugrl-platform-acme 1.0.*pip install plugrl-engine-a"):
        EngineRegistry.get_engine_cls(LM, "big", device="gpux", vendor="acme")
    lines = EngineRegistry.explain(LM, "big", device="gpux", vendor="acme").lines()
    assert "skipped." in lines[0] and "plugrl_engine_absent" in lines[0] and lines[-1] == "-> no engine"
    cls = EngineRegistry.register(LM, "big")(make_engine())
    with caplog.at_level(logging.WARNING):
        assert EngineRegistry.get_engine_cls(LM, "big", device="gpux", vendor="acme") is cls
    assert "passed over" in caplog.text and "pip install plugrl-engine-absent" in caplog.text
    assert EngineRegistry.explain(LM, "big", device="gpux", vendor="acme").to_dict()["steps"][0]["skipped"]


def test_the_command_that_installs_what_is_missing() -> None:
    acme = Origin(distribution="acme")
    assert install_command(["plugrl_engine_x"], acme) == "pip install plugrl-engine-x"
    assert install_command(["numpy", "plugrl_engine_x"], acme) == "pip install plugrl-engine-x acme"
    assert install_command(["numpy"], acme) == "pip install acme"
    assert install_command(["numpy"], Origin()) == "pip install numpy"


def test_a_vendors_engine_reads_the_sections_of_the_backend(engines: Any, on_platform: Use) -> None:
    on_platform("gpux", "acme")
    section = ConfigSection(key="big_config", schema="a.b:C")
    engines.register_target((LM, "big", "*", None), "a.b:C", meta={"sections": (section,)})
    engines.register_target((LM, "small", "*", None), "a.b:C", meta={"sections": (replace(section, key="other"),)})
    engines.register_target((LM, "big", "gpux", "acme"), "a.b:D", meta={"sections": ()})
    assert EngineRegistry.sections(LM, "big") == (section,)
    engines.register_target((LM, "big", "gpux", "acme"), "a.b:E", meta={"sections": (section,) * 2}, force=True)
    assert EngineRegistry.sections(LM, "big") == (section,) * 2
    assert EngineRegistry.sections(LM, "none") == ()
