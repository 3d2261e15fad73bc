"""Real packages that break in every way: each ends in its state, and none harms another or the command line."""

from __future__ import annotations

import json

import pytest

BROKEN = {
    "broken_import": ("failed", "import", "RuntimeError: broken on purpose"),
    "claims_built_in": ("failed", "commit", "platform cpu is claimed by plugrl (registry.py"),
    "duplicate_b": ("failed", "commit", "plugrl-test-duplicate-a 0.1.0"),
    "fails_registering": ("failed", "stage", "gpu"),
    "incompatible_core": ("incompatible", "validate", ">=99"),
    "not_a_plugin": ("failed", "import", "dict"),
    "old_api": ("incompatible", "validate", "plugin API 0"),
    "oserror_import": ("failed", "import", "OSError: libacme.so.1"),
    "resolves_platform": ("failed", "import", "while plugins load"),
    "sys_exit_import": ("failed", "import", "SystemExit: 3"),
}

LOAD_BOTH_ORDERS = """
import json, logging, sys
from plugrl.environment import read_environment
from plugrl.plugins import PluginSettings, hooks, load_plugins
from plugrl.plugins.discovery import discover
from plugrl.plugins.loader import isolated, load
from plugrl.registry import registries

logging.disable()
def content():
    return {kind: registry.describe() for kind, registry in registries().items()}
def outcome(ledger):
    return [(r.name, r.distribution, r.state, r.phase, r.reason) for r in ledger.records]
ledger = load_plugins()
first = dict(ledger=ledger.to_dict(), outcome=outcome(ledger), registries=content())
assert load_plugins() is ledger
first["hook_calls"] = sys.modules["good_plugin.hooks"].calls
first["header"] = hooks.fire("report_header")
first["heavy"] = [name for name in ("torch", "ray", "transformers", "pydantic") if name in sys.modules]
with isolated():
    again = load(discover()[::-1], read_environment(), PluginSettings())
    second = dict(outcome=outcome(again), registries=content(), fingerprint=again.fingerprint)
print(json.dumps([first, second]))
"""


@pytest.fixture(scope="module")
def both_orders(answer):
    """Load all test packages in one process, in the order found and in the reverse one."""
    return answer(LOAD_BOTH_ORDERS)


@pytest.fixture(scope="module")
def first(both_orders):
    return both_orders[0]


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_each_broken_plugin_ends_in_its_state_with_a_reason(first, name):
    state, phase, word = BROKEN[name]
    (row,) = [row for row in first["ledger"]["plugins"] if row["name"] == name]
    assert (row["state"], row["phase"]) == (state, phase) and word in row["reason"] and row["traceback"]


def test_the_others_are_active_and_slow_or_heavy_ones_are_measured(first):
    rows = {row["distribution"]: row for row in first["ledger"]["plugins"]}
    for name in ("good-plugin", "duplicate-a", "slow-import", "heavy-import"):
        assert rows[f"plugrl-test-{name}"]["state"] == "active"
    assert rows["plugrl-test-slow-import"]["import_ms"] >= 400
    assert rows["plugrl-test-heavy-import"]["heavy_imports"] == ["numpy"]
    assert rows["plugrl-test-same-name"]["state"] == "shadowed"
    assert "plugrl-test-good-plugin 1.2.3" in rows["plugrl-test-same-name"]["reason"]


def test_a_failed_plugin_leaves_nothing_behind(first):
    keys = {row["key"] for rows in first["registries"].values() for row in rows}
    assert not keys & {"left_by_decorator", "left_by_manifest", "only_of_b", "of_old_api", "of_another_core"}
    assert {"length", "claimed_twice", "slow", "acme", "language_model/acme_fsdp/acme"} <= keys


def test_a_failed_plugin_takes_nothing_built_in_with_it(first):
    """Also when it was the first to import the module of a registry."""
    (cpu,) = [row for row in first["registries"]["platform"] if row["key"] == "cpu"]
    assert (cpu["origin"]["distribution"], cpu["origin"]["source"]) == ("plugrl", "built-in")


def test_both_orders_of_discovery_give_the_same_result(both_orders):
    first, second = both_orders
    assert first["outcome"] == second["outcome"]
    assert first["registries"] == second["registries"]
    assert first["ledger"]["fingerprint"] == second["fingerprint"]


def test_hooks_of_the_good_plugin_are_called_once(first):
    assert len(first["hook_calls"]) == 1 and first["header"] == ["acme boards: 0"]


def test_loading_every_manifest_imports_nothing_large(first):
    assert first["heavy"] == []


def test_list_answers_with_every_plugin_broken(plugrl):
    # Without duplicate_a there is no duplicate.
    broken = {name: word for name, (_, _, word) in BROKEN.items() if name != "duplicate_b"}
    done = plugrl("plugins", "list", "--all", PLUGRL_PLUGINS=",".join(broken))
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout and word in done.stdout for name, word in broken.items())
    assert "Traceback" not in done.stdout + done.stderr


def test_doctor_shows_one_plugin_with_its_traceback_and_exits_with_1(plugrl):
    done = plugrl("plugins", "doctor", "oserror-import")
    assert done.returncode == 1
    assert "OSError: libacme.so.1: undefined symbol: acme_init" in done.stdout and "Traceback" in done.stdout


def test_doctor_as_json_tells_platform_variables_and_provenance(plugrl):
    done = plugrl("plugins", "doctor", "--json", PLUGRL_PLUGINS="good_plugin,-plugrl-test-same-name", PLUGRL_STRCT="1")
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["platform"]["platform_name"] == "cpu" and data["unknown_variables"] == {"PLUGRL_STRCT": "PLUGRL_STRICT"}
    facts = data["platform"]["facts"]
    assert facts["collectives"] == "gloo" and facts["first device"] == "CPU-0" and facts["capability"] == "none"
    (acme,) = [probe for probe in data["platform"]["probes"] if probe["platform"] == "acme"]
    assert acme["available"] is False and "no acme board" in acme["reason"]
    (reward,) = [row for row in data["registries"] if row["key"] == "length"]
    assert reward["origin"]["distribution"] == "plugrl-test-good-plugin" and reward["origin"]["line"] > 0
    assert [check["name"] for check in data["checks"]] == ["acme driver"]


def test_check_passes_a_good_plugin_and_exits_with_0(plugrl):
    done = plugrl("plugins", "check", "good_plugin", "--level", "L0", "--json", "-", PLUGRL_PLUGINS="")
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads(done.stdout)["reports"]
    assert {row["status"] for row in report["results"]} <= {"supported", "skipped"}


@pytest.mark.parametrize(
    "arguments",
    [("list", "--json"), ("explain", "platform", "--json"), ("check", "noisy", "--level", "L0", "--json", "-")],
)
def test_only_the_answer_is_on_standard_output_whatever_a_plugin_prints(plugrl, arguments):
    done = plugrl("plugins", *arguments, PLUGRL_PLUGINS="noisy", NOISY="1")
    assert json.loads(done.stdout) and done.returncode == 0, done.stdout + done.stderr
    if arguments[0] != "check":  # which loads it in another process
        assert "a greeting" in done.stderr and "a banner" in done.stderr and "good-bye" in done.stderr


CHECK = """
import json, sys
from plugrl.plugins.check import run_checks
print(json.dumps({name: [c.name for c in run_checks(name) if not c.ok] for name in sys.argv[1].split()}))
"""


def test_check_names_what_is_wrong(child):
    done = child(CHECK, "heavy_import slow_import oserror_import duplicate_b")
    failing = json.loads(done.stdout)
    assert "light import" in failing["heavy_import"] and "import time" in failing["slow_import"]
    assert "loads" in failing["oserror_import"] and "loads" in failing["duplicate_b"]


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (("plugins", "doctor", "god_plugin"), {}, ("god_plugin", "Did you mean good_plugin")),
        (("plugins", "check", "no_such_plugin"), {}, ("no_such_plugin", "Installed")),
        (("plugins", "list"), {"PLUGRL_PLUGINS": "god_plugin"}, ("god_plugin", "good-plugin")),
        (("plugins", "list"), {"RLINF_EXT_MODULE": "good_plugin.failing_extension"}, ("failed on purpose",)),
        (("plugins", "list"), {"PLUGRL_STRICT": "1"}, ("PLUGRL_STRICT", "plugrl-test-broken-import")),
    ],
)
def test_a_mistake_is_one_readable_message_and_exit_code_1(plugrl, arguments, variables, words):
    done = plugrl(*arguments, **variables)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


DRIVER_AND_WORKER = """
import json, logging, os, sys
logging.disable()
from plugrl.errors import PlugRLError
from plugrl.plugins import bootstrap, load_plugins
from plugrl.registry import registry_of
if "PLUGRL_FINGERPRINT" not in os.environ:
    print(json.dumps(bootstrap.worker_env_vars(load_plugins())))
else:
    bootstrap.setup()
    try:
        bootstrap.verify()
        extension = sys.modules.get("good_plugin.extension")
        print(json.dumps(["ok", getattr(extension, "registered", 0), list(registry_of("reward").keys())]))
    except PlugRLError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def test_a_worker_loads_what_the_driver_loaded_and_says_what_differs(answer):
    variables = answer(DRIVER_AND_WORKER, RLINF_EXT_MODULE="good_plugin.extension", PLUGRL_PLUGINS="-slow_import")
    assert "slow_import" not in variables["PLUGRL_PLUGINS"].split(",")
    state, registered, keys = answer(DRIVER_AND_WORKER, **variables)
    assert (state, registered) == ("ok", 1) and {"from_extension", "length"} <= set(keys)
    rows = variables["PLUGRL_PLUGIN_ROWS"].replace('"1.2.3"', '"1.3.0"')
    kind, text = answer(DRIVER_AND_WORKER, **{**variables, "PLUGRL_FINGERPRINT": "0", "PLUGRL_PLUGIN_ROWS": rows})
    assert kind == "FingerprintMismatch" and "plugrl-test-good-plugin 1.2.3; the driver has 1.3.0" in text
