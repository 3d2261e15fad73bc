"""Extension modules: imported once, registered whole or not at all, and never failing in silence."""

from __future__ import annotations

import sys

import pytest

from plugrl.environment import Environment, read_environment
from plugrl.errors import PluginError
from plugrl.plugins import load_plugins, loader
from plugrl.registry import registry_of

REGISTER = """
from plugrl.rewards.registry import REWARDS
calls = 0


def score(text, ground_truth, extra_info):
    return 0.0


def register():
    global calls
    calls += 1
    REWARDS.register({key!r}, score)
"""


def test_several_modules_are_imported_and_registered_once(bench):
    for name in ("ext_one", "ext_two"):
        bench.module(name, REGISTER.format(key=name))
    bench.module("ext_plain", "loaded = True")
    environment = read_environment({"RLINF_EXT_MODULE": " ext_one, ,ext_two,ext_one ,ext_plain"})
    ledger = bench.load(environment)
    assert [record.module for record in ledger.extensions] == ["ext_one", "ext_two", "ext_plain"]
    assert sys.modules["ext_one"].calls == 1 and "ext_two" in registry_of("reward")
    origin = registry_of("reward").entry("ext_one").origin
    assert origin.source == "extension module" and origin.file.endswith("ext_one.py") and origin.line > 0


def test_the_empty_plugin_list_does_not_concern_them(bench):
    bench.module("ext_one", REGISTER.format(key="ext_one"))
    bench.load(Environment(plugins="", ext_modules=("ext_one",)))
    assert "ext_one" in registry_of("reward")


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (None, "ModuleNotFoundError"),
        ("raise OSError('bad ABI')", "OSError: bad ABI"),
        (REGISTER.format(key="left_behind") + "    raise RuntimeError('on purpose')\n", "RuntimeError: on purpose"),
        ("raise SystemExit(1)", "SystemExit"),
        ("from plugrl.platforms import get_platform\nget_platform()", "platform"),
    ],
)
def test_a_failure_names_the_module_chains_the_error_and_registers_nothing(bench, source, word):
    if source is not None:
        bench.module("ext_bad", source)
    bench.module("ext_good", REGISTER.format(key="ext_good"))
    ledger = bench.load(Environment(ext_modules=("ext_bad", "ext_good")))
    (error,) = ledger.errors
    assert all(part in str(error) for part in ("ext_bad", "RLINF_EXT_MODULE", word)) and error.__cause__ is not None
    assert "left_behind" not in registry_of("reward") and "ext_good" in registry_of("reward")


def test_load_plugins_raises_it_every_time(bench, monkeypatch):
    monkeypatch.setattr(loader, "discover", lambda: [])
    monkeypatch.setenv("RLINF_EXT_MODULE", "no_such_module_here")
    for _ in range(2):
        with pytest.raises(PluginError, match="no_such_module_here"):
            load_plugins()
    assert load_plugins(fatal=False).errors


def test_it_may_override_a_plugin_by_force(bench):
    bench.reward("a", "claimed")
    source = REGISTER.format(key="claimed").replace("score)", "score, force=True)")
    bench.module("ext_force", source)
    ledger = bench.load(Environment(ext_modules=("ext_force",)))
    entry = registry_of("reward").entry("claimed")
    assert ledger.errors == () and entry.origin.source == "extension module" and len(entry.history) == 1


@pytest.mark.parametrize("name", ["two words", "a;b", "ext_one:x", "/tmp/ext.py", ".ext_one", "-ext_one"])
def test_what_is_no_name_of_a_module_is_told_how_to_write_it(bench, name):
    (error,) = bench.load(Environment(ext_modules=(name,))).errors
    assert f'"{name}" is no name of a module: write package.module' in str(error)


def test_an_asynchronous_register_is_refused_instead_of_forgotten(bench):
    bench.module("ext_async", "async def register():\n    pass\n")
    (error,) = bench.load(Environment(ext_modules=("ext_async",))).errors
    assert "asynchronous" in str(error)


DECORATED = """
from plugrl.rewards import register_reward
register_reward("shared")(lambda text, ground_truth, extra_info: 0.0)
"""


@pytest.mark.parametrize("broken", ["extension", "import", "commit"])
def test_a_module_that_a_failing_one_imported_first_still_registers(bench, broken):
    """Python imports it once; what it registered went with the one that failed."""
    bench.module("ext_shared", DECORATED)
    modules = ("ext_shared",)
    if broken == "extension":
        bench.module("ext_bad", "import ext_shared\nraise RuntimeError('on purpose')")
        modules = ("ext_bad", "ext_shared")
    elif broken == "import":
        bench.plugin("bad", before="import ext_shared\nraise RuntimeError('on purpose')")
    else:
        bench.plugin("bad", "rewards=(RewardEntry(name='gsm8k', target='m:f'),)", before="import ext_shared")
    ledger = bench.load(Environment(ext_modules=modules))
    assert ledger.extensions[-1].state == "active" and not ledger.active
    assert registry_of("reward").entry("shared").origin.source == "extension module"
