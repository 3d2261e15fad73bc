"""Workers: what is forwarded, what the fingerprint covers, and that setting up never raises."""

from __future__ import annotations

import pytest

from plugrl.environment import Environment
from plugrl.errors import FingerprintMismatch, PluginError
from plugrl.plugins import PluginSettings, bootstrap, loader
from plugrl.plugins.discovery import Discovered
from plugrl.plugins.fingerprint import Row, decode_rows, describe_difference, encode_rows, fingerprint_of

ROWS = (Row("acme-a", "1.0", "a", "a:plugin", "active"), Row("acme-b", "2.0", "b", "b:plugin", "failed"))


@pytest.fixture
def worker(bench, monkeypatch):
    """Return a function that runs setup and verify as in a worker with the bench's plugins and these variables."""
    monkeypatch.setattr(loader, "discover", lambda: bench.found)
    monkeypatch.setattr(bootstrap, "_report", None)

    def run(variables: dict[str, str]):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with loader.isolated():
            bootstrap.setup()
            return bootstrap.verify()

    return run


def test_the_fingerprint_depends_on_the_rows_and_not_on_their_order():
    assert fingerprint_of(ROWS) == fingerprint_of(ROWS[::-1])
    for changed in (ROWS[0]._replace(version="1.1"), ROWS[0]._replace(state="failed"), ROWS[0]._replace(value="c:p")):
        assert fingerprint_of((changed, ROWS[1])) != fingerprint_of(ROWS)
    assert decode_rows(encode_rows(ROWS)) == ROWS and decode_rows("no json") == () and decode_rows(None) == ()


def test_each_difference_is_told_in_words():
    here = (Row("acme-a", "1.1", "a", "a:plugin", "active"), Row("acme-c", "3.0", "c", "c:plugin", "active"))
    there = (*ROWS, Row("acme-c", "3.0", "c", "c:plugin", "failed"))
    assert describe_difference(here, there) == [
        "has acme-a 1.1; the driver has 1.0",
        "lacks acme-b 2.0, which the driver has",
        "has acme-c 3.0 active; in the driver it is failed",
    ]
    assert describe_difference(here, here) == []


def test_a_worker_with_the_same_plugins_passes(bench, worker):
    bench.reward("good", "score")
    bench.plugin("bad", before="raise RuntimeError('on purpose')")
    ledger = bench.load()
    assert worker(bootstrap.worker_env_vars(ledger)).fingerprint == ledger.fingerprint


def test_the_worker_gets_the_resolved_list_and_a_plugin_it_has_besides_does_not_matter(bench, worker):
    bench.plugin("good")
    bench.plugin("denied")
    ledger = bench.load(settings=PluginSettings(deny=("denied",)))
    variables = bootstrap.worker_env_vars(ledger)
    assert variables["PLUGRL_PLUGINS"] == "good"
    bench.plugin("extra")
    assert [record.name for record in worker(variables).active] == ["good"]


def test_a_missing_and_a_different_plugin_are_named_with_the_node(bench, worker):
    bench.plugin("good")
    bench.plugin("gone")
    variables = bootstrap.worker_env_vars(bench.load())
    good = bench.found[0]
    bench.found = [Discovered(name="good", value=good.value, distribution="acme-good", version="0.9")]
    with pytest.raises(FingerprintMismatch) as caught:
        worker(variables)
    words = ("Worker pid", "lacks acme-gone 1.0", "acme-good 0.9; the driver has 1.0", "every node")
    assert all(word in str(caught.value) for word in words)


def test_a_plugin_that_fails_only_in_the_worker_is_named_with_its_traceback(bench, worker):
    bench.plugin("good")
    variables = bootstrap.worker_env_vars(bench.load())
    name = bench.found[0].value.partition(":")[0]
    bench.module(name, "raise OSError('bad ABI here')")
    __import__("sys").modules.pop(name)
    with pytest.raises(FingerprintMismatch) as caught:
        worker(variables)
    assert "acme-good 1.0 failed; in the driver it is active" in str(caught.value)
    assert "OSError: bad ABI here" in str(caught.value) and "Traceback" in str(caught.value)


def test_setup_never_raises_and_verify_tells_node_and_reason(bench, worker):
    with pytest.raises(PluginError, match="Worker pid .*no_such_module_here"):
        worker({"RLINF_EXT_MODULE": "no_such_module_here"})


def test_a_variable_that_means_nothing_is_told_at_first_use(bench, worker):
    with pytest.raises(PluginError, match="PLUGRL_CPU_DEVICES"):
        worker({"PLUGRL_CPU_DEVICES": "many"})


@pytest.mark.parametrize("separator", [":", "."])
def test_the_users_own_hook_is_called_last(bench, worker, separator):
    source = "from plugrl.plugins import current_ledger\nseen = []\ndef setup():\n    seen.append(current_ledger())\n"
    bench.module("user_hook", source)
    worker({"PLUGRL_SETUP_HOOK": f"user_hook{separator}setup"})
    assert __import__("user_hook").seen[0] is not None


def test_a_users_hook_that_raises_is_told_at_first_use(bench, worker):
    bench.module("user_hook", "def setup():\n    raise RuntimeError('of the user')\n")
    with pytest.raises(PluginError, match="of the user"):
        worker({"PLUGRL_SETUP_HOOK": "user_hook.setup"})


def test_only_what_belongs_to_plugrl_is_forwarded(bench, monkeypatch):
    bench.plugin("good", "worker_env={'ACME_LOG': 'warning'}")
    for name, value in {"VERL_PLATFORM": "cpu", "PLUGRL_STRICT": "0", "HF_TOKEN": "secret", "HOME": "/x"}.items():
        monkeypatch.setenv(name, value)
    variables = bootstrap.worker_env_vars(bench.load())
    assert set(variables) == {
        "ACME_LOG",
        "VERL_PLATFORM",
        "PLUGRL_STRICT",
        "PLUGRL_PLUGINS",
        "PLUGRL_FINGERPRINT",
        "PLUGRL_PLUGIN_ROWS",
    }


def test_plugins_may_not_want_different_values_nor_set_our_own_variables(bench):
    bench.plugin("a", "worker_env={'ACME_LOG': 'warning'}")
    bench.plugin("b", "worker_env={'ACME_LOG': 'debug'}")
    with pytest.raises(PluginError, match="a and b want different values of ACME_LOG"):
        bootstrap.worker_env_vars(bench.load())
    bench.found = []
    bench.plugin("c", "worker_env={'VERL_PLATFORM': 'acme'}")
    with pytest.raises(PluginError, match="c sets VERL_PLATFORM"):
        bootstrap.worker_env_vars(bench.load(Environment()))
