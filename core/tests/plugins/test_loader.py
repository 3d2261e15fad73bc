"""The loader: one state per plugin, nothing left behind by a failed one, the same result for every order."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path

import pytest

from plugrl.environment import Environment
from plugrl.errors import NotRegistered, PluginError, Terminated
from plugrl.plugins import PluginSettings, current_ledger, hooks, load_plugins, loader
from plugrl.plugins.discovery import Discovered
from plugrl.registry import registries, registry_of


def rewards() -> set[str]:
    return set(registry_of("reward").keys())


def test_a_good_plugin_is_active_and_its_target_is_not_imported(bench, states):
    bench.reward("good", "score")
    ledger = bench.load()
    assert states(ledger) == {"good": "active"} and "score" in rewards()
    origin = registry_of("reward").entry("score").origin
    assert (origin.plugin, origin.source) == ("good", "entry point") and origin.owner == "acme-good 1.0"
    assert set(ledger.records[0].timings) == {"import", "validate", "stage"}


@pytest.mark.parametrize(
    ("before", "body", "phase", "word"),
    [
        ("raise RuntimeError('on purpose')", "", "import", "RuntimeError: on purpose"),
        ("raise OSError('bad ABI')", "", "import", "OSError: bad ABI"),
        ("raise SystemExit(3)", "", "import", "SystemExit: 3"),
        ("import no_such_module_here", "", "import", "no_such_module_here"),
        ("Plugin = dict", "", "import", "not a plugrl.plugins.Plugin"),
        ("", "name='other'", "validate", "differs from its entry point"),
        ("", "rewards=[1]", "validate", "rewards must be a tuple"),
        ("", "requires_core='about 1'", "validate", "no version range"),
        ("", "hooks='no_such_module_here'", "stage", "no_such_module_here"),
        ("", "nonsense=1", "import", "nonsense"),
    ],
)
def test_a_failure_is_recorded_with_phase_and_reason_and_stops_no_other(bench, states, before, body, phase, word):
    bench.plugin("bad", body, before=before)
    bench.reward("good", "score")
    ledger = bench.load()
    record = ledger.find("bad")
    assert states(ledger) == {"bad": "failed", "good": "active"}
    assert record.phase == phase and word in record.reason and word in record.traceback
    assert ledger.errors == () and "plugrl plugins doctor bad" in record.sentence()


def test_ctrl_c_is_not_swallowed(bench):
    bench.plugin("bad", before="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        bench.load()


def test_what_a_failing_plugin_registered_by_decorator_is_dropped_too(bench):
    bench.plugin(
        "bad",
        "rewards=(RewardEntry(name='declared', target='m:f'),), hooks='no_such_module_here'",
        before="from plugrl.rewards.registry import REWARDS\nREWARDS.register('decorated', lambda t, g, e: 0.0)",
    )
    before = rewards()
    assert bench.load().find("bad").state == "failed" and rewards() == before


@pytest.mark.parametrize(("api", "word"), [(0, "Upgrade the plugin"), (99, "Upgrade plugrl")])
def test_another_api_is_incompatible(bench, api, word):
    bench.plugin("old", f"api={api}, rewards=(RewardEntry(name='score', target='m:f'),)")
    record = bench.load().find("old")
    assert record.state == "incompatible" and str(api) in record.reason and word in record.reason
    assert "score" not in rewards()


def test_the_api_before_is_accepted_with_a_deprecation_warning(bench, monkeypatch):
    bench.plugin("old", "api=1")
    monkeypatch.setattr("plugrl.plugins.manifest.PLUGIN_API", 2)
    with pytest.warns(DeprecationWarning, match="API 1, which is dropped with API 3"):
        assert bench.load().find("old").state == "active"


def test_another_core_is_incompatible(bench):
    bench.plugin("future", "requires_core='>=99'")
    record = bench.load().find("future")
    assert record.state == "incompatible" and ">=99" in record.reason


def test_two_claims_on_a_key_keep_the_first_and_drop_the_second_whole(bench, states):
    bench.reward("a", "claimed")
    bench.reward("b", "only_b", "claimed")
    ledger = bench.load()
    assert states(ledger) == {"a": "active", "b": "failed"} and "only_b" not in rewards()
    record = ledger.find("b")
    assert record.phase == "commit" and "acme-a 1.0" in record.reason and "acme-b 1.0" in record.reason


def test_force_overrides_also_a_plugin_that_sorts_later(bench, states, caplog):
    bench.reward("a", "claimed", force=True)
    bench.reward("b", "claimed")
    assert states(bench.load()) == {"a": "active", "b": "active"}
    entry = registry_of("reward").entry("claimed")
    assert entry.origin.plugin == "a" and [past.origin.plugin for past in entry.history] == ["b"]
    assert "overridden by acme-a 1.0" in caplog.text


def test_a_name_that_two_distributions_use_is_shadowed(bench):
    bench.plugin("twin", distribution="acme-a")
    bench.plugin("twin", distribution="acme-b")
    ledger = bench.load()
    assert [record.state for record in ledger.records] == ["active", "shadowed"]
    assert "acme-a 1.0" in ledger.records[1].reason and ledger.find("twin").distribution == "acme-a"


def test_every_order_of_discovery_gives_the_same_result(bench):
    bench.reward("a", "claimed", "x")
    bench.reward("b", "claimed")
    bench.reward("c", "claimed", force=True)
    bench.plugin("bad", before="raise RuntimeError('on purpose')")
    results = []
    for order in itertools.permutations(bench.found):
        with loader.isolated():
            ledger = loader.load(order, Environment(), PluginSettings())
            origins = [(row["key"], str(row["origin"]), row["overrides"]) for row in registry_of("reward").describe()]
            results.append(([(r.name, r.state, r.reason) for r in ledger.records], ledger.fingerprint, origins))
    assert all(result == results[0] for result in results)


def test_a_platform_is_committed_before_a_conflict_elsewhere_takes_it_away(bench):
    platform = "platforms=(PlatformEntry(name='acme', vendor='v', device='d', probe='m:p', target='m:f'),)"
    bench.reward("a", "claimed")
    bench.plugin("b", f"{platform}, rewards=(RewardEntry(name='claimed', target='m:f'),)")
    bench.load()
    assert "acme" not in registry_of("platform")


def test_asking_for_the_platform_while_loading_fails_that_plugin_alone(bench, states):
    bench.plugin("early", before="from plugrl.platforms import get_platform\nget_platform()")
    bench.reward("good", "score")
    ledger = bench.load()
    assert states(ledger) == {"early": "failed", "good": "active"}
    assert "while plugins load" in ledger.find("early").reason
    assert not loader.is_loading() and loader.loading_plugin() is None


def test_a_plugin_that_loads_plugins_fails(bench):
    bench.plugin("recursive", before="from plugrl.plugins import load_plugins\nload_plugins()")
    assert "recursive calls load_plugins()" in bench.load().find("recursive").reason


def test_a_manifest_that_imports_a_large_library_is_noted(bench, monkeypatch):
    monkeypatch.setattr("plugrl.plugins.guard.HEAVY_MODULES", ("a_large_library",))
    bench.module("a_large_library", "")
    bench.plugin("heavy", before="import a_large_library")
    assert bench.load().find("heavy").heavy_imports == ("a_large_library",)


def test_loading_twice_and_from_two_threads_changes_nothing(bench, monkeypatch):
    bench.reward("good", "score")
    calls = []
    monkeypatch.setattr(loader, "discover", lambda: calls.append(1) or bench.found)
    found = []
    threads = [threading.Thread(target=lambda: found.append(load_plugins())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(calls) == 1 and len(found) == 4 and all(ledger is current_ledger() for ledger in found)
    content = [registry.describe() for registry in registries().values()]
    assert load_plugins() is found[0] and [registry.describe() for registry in registries().values()] == content


def test_loading_the_same_plugins_again_neither_raises_nor_duplicates(bench, states):
    bench.reward("good", "score")
    bench.load()
    before = registry_of("reward").describe()
    assert states(bench.load()) == {"good": "active"} and registry_of("reward").describe() == before


def test_a_broken_plugin_gives_one_warning_line_and_none_when_quiet(bench, monkeypatch, caplog):
    bench.plugin("bad", before="raise RuntimeError('on purpose')")
    monkeypatch.setattr(loader, "discover", lambda: bench.found)
    load_plugins()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert all(word in line for word in ("acme-bad 1.0", "import", "RuntimeError: on purpose", "doctor bad"))
    assert "\n" not in line
    caplog.clear()
    with loader.isolated():
        load_plugins(quiet=True)
    assert caplog.records == []


def test_strict_stops_at_any_broken_plugin(bench):
    bench.plugin("bad", before="raise OSError('bad ABI')")
    bench.plugin("old", "api=0")
    (error,) = bench.load(Environment(strict=True)).errors
    assert all(word in str(error) for word in ("PLUGRL_STRICT", "acme-bad", "acme-old"))
    assert isinstance(error.__cause__, OSError)


def test_a_look_up_tells_what_failed_and_would_provide_it(bench):
    bench.plugin("conflict", "api=0, rewards=(RewardEntry(name='wanted', target='m:f'),)")
    bench.plugin("openvla", before="import no_such_sdk")
    bench.plugin("denied")
    ledger = bench.load(settings=PluginSettings(deny=("denied",)))
    loader.set_current_ledger(ledger)
    for kind, key, words in (
        ("reward", "wanted", ("acme-conflict 1.0", "plugin API 0", "doctor conflict")),
        ("model", "openvla", ("acme-openvla 1.0", "no_such_sdk", "doctor openvla")),
        ("model", "something", ("may provide it", "acme-openvla 1.0", "Disabled by plugins.deny", "acme-denied 1.0")),
        ("env", "denied", ("acme-denied 1.0", "disabled by plugins.deny")),
    ):
        with pytest.raises(NotRegistered) as caught:
            registry_of(kind).get(key)
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_look_up_before_loading_says_so(bench):
    with pytest.raises(NotRegistered, match="load_plugins"):
        registry_of("env").get("anything")


def test_a_plugin_without_a_distribution_is_called_by_its_name(bench):
    found = bench.plugin("lonely", before="raise RuntimeError('x')")
    bench.found = [Discovered(name=found.name, value=found.value)]
    assert bench.load().records[0].sentence().startswith("lonely failed in import")


def test_other_lists_after_loading_are_refused_and_requirements_checked(bench, monkeypatch):
    bench.reward("good", "score")
    monkeypatch.setattr(loader, "discover", lambda: bench.found)
    first = load_plugins()
    assert load_plugins(PluginSettings(allow=("good",), required=("good>=1",))) is not None
    with pytest.raises(PluginError, match="already loaded"):
        load_plugins(PluginSettings(deny=("good",)))
    with pytest.raises(PluginError, match="1.0 is installed"):
        load_plugins(PluginSettings(required=("acme-good>=2",)))
    assert load_plugins() is first


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("rewards=5", "rewards must be a tuple"),
        ("rewards=('a:b',)", "rewards[0] must be a RewardEntry"),
        ("rewards={'a': 'b:c'}", "rewards must be a tuple"),
        ("engines=(EngineEntry(model_type=5, backend='x', target='a:b'),)", "model_type 5"),
        ("patches=5", "patches must be a tuple"),
    ],
)
def test_a_manifest_that_holds_anything_can_still_be_listed(bench, body, words):
    bench.plugin("bad", body)
    ledger = bench.load()
    assert ledger.find("bad").phase == "validate" and words in ledger.find("bad").reason
    assert ledger.to_dict()["plugins"][0]["provides"] == {}


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E", "E: (its text cannot be read"),
        ("raise ImportError('one\\n\\n  two')", "ImportError: one two"),
        ("raise ImportError('x' * 100000)", "ImportError: xxx"),
        ("class Panic(BaseException): pass\nraise Panic('of an extension')", "Panic: of an extension"),
    ],
)
def test_the_reason_is_one_line_of_bounded_length_whatever_was_raised(bench, before, reason):
    bench.plugin("bad", before=before)
    found = bench.load().find("bad").reason
    assert found.startswith(reason) and "\n" not in found and len(found) < 1100


def test_termination_is_not_taken_for_a_failure_of_the_plugin_it_meets(bench):
    bench.plugin("slow", before="from plugrl.errors import Terminated\nraise Terminated")
    with pytest.raises(Terminated):
        bench.load()


def test_two_plugins_may_name_one_module_of_hooks(bench, states):
    module = bench.module(
        "shared_hooks", "from plugrl.plugins import hookimpl\n@hookimpl\ndef report_header(): return 'x'\n"
    )
    for name in ("a", "b"):
        bench.plugin(name, f"hooks={module!r}")
    assert states(bench.load()) == {"a": "active", "b": "active"} and hooks.fire("report_header") == ["x"]


def test_a_plugin_that_changes_the_working_folder_does_not_move_the_users_paths(bench, monkeypatch):
    monkeypatch.chdir(bench.folder)
    bench.plugin("mover", before="import os\nos.chdir('/')")
    bench.module("moving_extension", "import os\nos.chdir('/')")
    bench.load(Environment(ext_modules=("moving_extension",)))
    assert Path.cwd() == bench.folder
