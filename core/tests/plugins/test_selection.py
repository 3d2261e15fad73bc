"""Which plugins may load: the variable, the lists, and what a run requires."""

from __future__ import annotations

import pytest

from plugrl.environment import Environment
from plugrl.plugins import PluginSettings


@pytest.mark.parametrize(
    ("variable", "active"),
    [
        (None, {"one_a", "two"}),
        ("one_a,two", {"one_a", "two"}),
        (" ONE-A ,, ", {"one_a"}),
        ("acme.TWO", {"two"}),
        ("-two", {"one_a"}),
        ("-two,-one.a", set()),
        ("one_a,two,-two", {"one_a"}),
        ("", set()),
        (" , ", set()),
    ],
)
def test_the_variable(bench, variable, active):
    bench.plugin("one_a")
    bench.plugin("two")
    ledger = bench.load(Environment(plugins=variable))
    assert {record.name for record in ledger.active} == active and ledger.errors == ()
    for record in ledger.records:
        if record.name not in active:
            assert record.state == "disabled" and "PLUGRL_PLUGINS" in record.reason and record.manifest is None


def test_restrictions_add_up(bench):
    for name in ("a", "b", "c"):
        bench.plugin(name)
    ledger = bench.load(Environment(plugins="a,b"), PluginSettings(allow=("b", "c"), deny=("c",)))
    assert [record.name for record in ledger.active] == ["b"]
    reasons = {record.name: record.reason for record in ledger.records}
    assert reasons["a"] == "plugins.allow" and reasons["c"] == "PLUGRL_PLUGINS=a,b"
    assert bench.load(Environment(plugins=""), PluginSettings(allow=("a",))).active == ()
    assert bench.load(Environment(), PluginSettings(allow=())).active == ()


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        (Environment(plugins="platfrom_acme"), PluginSettings()),
        (Environment(), PluginSettings(allow=("platfrom_acme",))),
    ],
)
def test_an_allow_list_item_that_matches_nothing_is_an_error_with_the_nearest_name(bench, environment, settings):
    bench.plugin("platform_acme")
    (error,) = bench.load(environment, settings).errors
    assert all(word in str(error) for word in ("platfrom_acme", "Did you mean", "Installed: platform_acme"))


def test_a_disabled_plugin_is_not_imported(bench):
    bench.plugin("loud", before="raise KeyboardInterrupt")
    assert bench.load(settings=PluginSettings(deny=("acme-loud",))).find("loud").state == "disabled"


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("good", None),
        ("acme_good>=1.0,<2", None),
        ("good>=2", ("good>=2", "1.0 is installed")),
        ("acme-goood", ("is not installed", "Did you mean acme-good", "pip install")),
        ("bad", ("failed in import", "OSError: bad ABI")),
        ("denied", ("disabled by plugins.deny",)),
        (">=1", ("no requirement",)),
    ],
)
def test_required(bench, requirement, words):
    bench.plugin("good")
    bench.plugin("bad", before="raise OSError('bad ABI')")
    bench.plugin("denied")
    errors = bench.load(settings=PluginSettings(deny=("denied",), required=(requirement,))).errors
    if words is None:
        assert errors == ()
        return
    (error,) = errors
    assert all(word in str(error) for word in words), str(error)
    if requirement == "bad":
        assert isinstance(error.__cause__, OSError)


def test_a_slip_in_a_deny_list_is_a_warning_and_a_plugin_that_is_elsewhere_is_not(bench, caplog):
    bench.plugin("platform_acme")
    ledger = bench.load(Environment(plugins="-platfrom_acme,-simulator"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert ledger.errors == () and "platfrom_acme" in line and 'Did you mean "platform-acme"' in line


def test_a_version_that_is_none_satisfies_no_range(bench):
    bench.plugin("odd", version="banana")
    assert bench.load(settings=PluginSettings(required=("odd",))).errors == ()
    (error,) = bench.load(settings=PluginSettings(required=("odd>=1",))).errors
    assert "banana is installed" in str(error)
