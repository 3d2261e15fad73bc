"""Manifests: what they accept, and that each mistake is named with its field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from plugrl.plugins import (
    PLUGIN_API,
    ConfigSection,
    EngineEntry,
    ModelEntry,
    Patch,
    PlatformEntry,
    Plugin,
    RewardEntry,
)
from plugrl.plugins.capabilities import LEVELS, PLATFORM_CAPABILITIES, level_of
from plugrl.provenance import Origin

TARGET = "acme.module:thing"


def manifest(**changes: object) -> Plugin:
    arguments = {"name": "acme", "api": PLUGIN_API, "requires_core": ">=0.1", "summary": "for a test", **changes}
    return Plugin(**arguments)


def engine_with(section: ConfigSection) -> dict[str, object]:
    return {"engines": (EngineEntry(model_type="m", backend="b", target=TARGET, sections=(section,)),)}


def test_a_sound_manifest_has_no_problems_and_is_frozen():
    plugin = manifest(rewards=(RewardEntry(name="x", target=TARGET),), worker_env={"A": "1"})
    assert plugin.problems() == []
    with pytest.raises(FrozenInstanceError):
        plugin.name = "other"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Acme-1"}, ["name", "Acme-1"]),
        ({"api": "1"}, ["api", "whole number"]),
        ({"requires_core": None}, ["requires_core"]),
        ({"summary": " "}, ["summary"]),
        ({"hooks": 3}, ["hooks"]),
        ({"summary": 5}, ["summary 5 must be a text"]),
        ({"url": 5}, ["url 5 must be a text"]),
        ({"worker_env": {"A": 1}}, ["worker_env"]),
        ({"worker_env": ["A"]}, ["worker_env"]),
        ({"worker_env": {"A=B": "1"}}, ["worker_env"]),
        ({"rewards": [RewardEntry(name="x", target=TARGET)]}, ["rewards", "tuple", "list"]),
        ({"rewards": (RewardEntry(name="x", target="acme.module.thing"),)}, ["rewards[0]", "acme.module.thing"]),
        ({"rewards": (RewardEntry(name="", target=TARGET),)}, ["rewards[0]", "no name"]),
        ({"rewards": (RewardEntry(name="x", target=TARGET, needs="numpy"),)}, ["needs", "numpy"]),
        ({"rewards": (ModelEntry(model_type="x", target=TARGET),)}, ["rewards[0]", "RewardEntry", "ModelEntry"]),
        ({"models": (ModelEntry(model_type="x", target=TARGET, schema="x"),)}, ["models[0]", "schema"]),
        ({"engines": (EngineEntry(model_type="m", backend=(), target=TARGET),)}, ["engines[0]", "no key"]),
        ({"engines": (EngineEntry(model_type="m", backend="b", vendor=(), target=TARGET),)}, ["engines[0]", "no key"]),
        ({"engines": (EngineEntry(model_type=5, backend="b", target=TARGET),)}, ["model_type 5", "a name or a tuple"]),
        ({"engines": (EngineEntry(model_type="m", backend="b", target=TARGET, sections=None),)}, ["sections", "None"]),
        (engine_with(ConfigSection(key="Acme-Config", schema=TARGET)), ["key 'Acme-Config'"]),
        (engine_with(ConfigSection(key="acme", schema=TARGET, owners="actor")), ["owners of section acme", "'actor'"]),
        (engine_with(ConfigSection(key="acme", schema=TARGET, owners=("data",))), ["owners of section acme", "data"]),
        (
            {"models": (ModelEntry(model_type="x", target=TARGET, category="speech"),)},
            ["category 'speech'", "embodied"],
        ),
        ({"rewards": (RewardEntry(name="x", target=TARGET, summary=5, force="no"),)}, ["summary 5", "force 'no'"]),
        (
            {"platforms": (PlatformEntry(name="x", vendor=5, device=None, probe=TARGET, target=TARGET),)},
            ["vendor 5", "device None"],
        ),
        (
            {"patches": (Patch(target=TARGET, replacement=TARGET, reason=None, remove_in=5, applies_to=7),)},
            ["reason None", "remove_in 5", "applies_to 7"],
        ),
        (
            {"patches": (Patch(target="x", replacement=TARGET, reason="", remove_in="soon", applies_to="?"),)},
            ["target", "reason", "remove_in", "applies_to"],
        ),
    ],
)
def test_each_mistake_is_named_with_its_field(changes, words):
    text = "; ".join(manifest(**changes).problems())
    assert all(word in text for word in words), text


def test_an_engine_claims_every_combination():
    entry = EngineEntry(model_type=("a", "b"), backend="x", device=("d", "e"), vendor="v", target=TARGET)
    assert set(entry.keys()) == {("a", "x", "d", "v"), ("a", "x", "e", "v"), ("b", "x", "d", "v"), ("b", "x", "e", "v")}
    assert EngineEntry(model_type="a", backend="x", target=TARGET).keys() == (("a", "x", "*", None),)


def test_registrations_carry_the_kinds_own_fields_and_the_line_of_the_entry():
    section = ConfigSection(key="acme_config", schema=TARGET)
    entry = EngineEntry(model_type="m", backend="b", target=TARGET, sections=(section,), capabilities=("offload",))
    (claim,) = entry.registrations(Origin(plugin="acme"))
    assert claim.meta == {"capabilities": ("offload",), "sections": (section,)}
    assert claim.origin.plugin == "acme" and claim.origin.file == __file__ and claim.origin.line > 0
    platform = PlatformEntry(name="p", vendor="v", device="d", probe=TARGET, aliases=("q",), target=TARGET)
    (claim,) = platform.registrations(Origin())
    assert claim.aliases == ("q",) and claim.meta == {
        "vendor": "v", "device": "d", "probe": TARGET, "priority": 50, "capabilities": ()
    }  # fmt: skip


def test_entries_are_listed_platforms_first():
    plugin = manifest(
        rewards=(RewardEntry(name="x", target=TARGET),),
        platforms=(PlatformEntry(name="p", vendor="v", device="d", probe=TARGET, target=TARGET),),
    )
    assert [entry.kind for entry in plugin.entries()] == ["platform", "reward"]


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        (("numerics.autocats",), ["'numerics.autocats' is no capability", "did you mean numerics.autocast"]),
        (("platform.rng", "platform.rng"), ["'platform.rng' is declared twice"]),
        ("platform.rng", ["capabilities must be a tuple of names, not 'platform.rng'"]),
    ],
)
def test_a_platform_declares_only_capabilities_that_exist(capabilities: object, words: list[str]) -> None:
    entry = PlatformEntry(name="p", vendor="v", device="d", probe=TARGET, target=TARGET, capabilities=capabilities)
    (problem,) = manifest(platforms=(entry,)).problems()
    assert all(word in problem for word in words), problem


def test_every_capability_has_a_level_and_a_meaning() -> None:
    assert {level_of(name) for name in PLATFORM_CAPABILITIES} == set(LEVELS) - {"L0"}
    assert all(text and "\n" not in text for text in PLATFORM_CAPABILITIES.values())
