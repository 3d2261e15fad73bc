"""Lifecycle hooks: called plugin by plugin, wrong ones refused when their plugin loads."""

from __future__ import annotations

import inspect

import pytest

from plugrl.errors import ConfigError, PluginError
from plugrl.plugins import hooks, hookspecs

HEADER = "from plugrl.plugins import Check, Diagnostic, hookimpl\ncalls = []\n"


def hook(name: str, arguments: str, body: str) -> str:
    return f"{HEADER}@hookimpl\ndef {name}({arguments}):\n    {body}\n"


@pytest.fixture
def hooked(bench):
    """Load one plugin per source text, named a, b, c, and return their ledger."""

    def load(*sources: str):
        for name, source in zip("abc", sources, strict=False):
            bench.plugin(name, f"hooks={bench.module(f'hooks_of_{name}', source)!r}")
        return bench.load()

    return load


def test_every_plugin_is_called_in_order_and_one_that_raises_stops_no_other(hooked, caplog):
    good = [hook("report_header", "", f"return {text!r}") for text in ("first", "third")]
    hooked(good[0], hook("report_header", "", "raise RuntimeError('on purpose')"), good[1])
    for _ in range(2):
        assert hooks.fire("report_header") == ["first", "third"]
    (failure,) = hooks.failures()
    assert (failure.plugin, failure.hook) == ("b", "report_header") and "on purpose" in failure.traceback
    assert len([record for record in caplog.records if "on purpose" in record.getMessage()]) == 1


def test_an_implementation_may_take_fewer_arguments(hooked):
    hooked(hook("before_train_step", "", "calls.append(1)"))
    hooks.fire("before_train_step", context=object())
    assert __import__("hooks_of_a").calls == [1] and hooks.failures() == ()


def test_a_failure_at_worker_start_stops_the_worker_and_names_the_plugin(hooked):
    hooked(hook("on_worker_start", "context", "raise OSError('no device')"))
    with pytest.raises(PluginError, match="Plugin a .* on_worker_start: OSError: no device") as caught:
        hooks.fire("on_worker_start", context=None)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (hook("on_worker_start", "context, gpu", "pass"), "gpu"),
        (hook("on_worker_begin", "context", "pass"), "on_worker_begin"),
        ("def on_worker_start(context):\n    pass\n", "hookimpl"),
        ("raise OSError('bad ABI')", "bad ABI"),
    ],
)
def test_wrong_hooks_fail_their_plugin_when_it_loads(hooked, source, word):
    record = hooked(source).find("a")
    assert record.state == "failed" and record.phase == "stage" and word in record.reason


def test_diagnostics_of_a_configuration_may_be_fatal(hooked):
    hooked(
        hook("on_config", "config", "return [Diagnostic(message='note')]"),
        hook("on_config", "config", "return [Diagnostic(message='never', fatal=True)] if config else []"),
    )
    assert [item.message for item in hooks.diagnose({})] == ["note"]
    with pytest.raises(ConfigError, match="never"):
        hooks.diagnose({"x": 1})


def test_every_hook_is_documented_and_firing_without_plugins_is_nothing(bench):
    specs = [item for _, item in inspect.getmembers(hookspecs, inspect.isfunction) if hasattr(item, "plugrl_spec")]
    assert len(specs) == 9 and all(inspect.getdoc(spec) for spec in specs)
    for spec in specs:
        arguments = dict.fromkeys(inspect.signature(spec).parameters)
        assert hooks.fire(spec.__name__, **arguments) == []


@pytest.mark.parametrize(
    ("name", "arguments", "body"),
    [
        ("doctor_checks", "", "return 5"),
        ("doctor_checks", "", "return ['fine']"),
        ("on_config", "config", "return Diagnostic(message='not in a list')"),
        ("report_header", "", "return 7"),
        ("report_header", "", "raise type('Panic', (BaseException,), {})('of an extension')"),
    ],
)
def test_what_a_hook_may_not_return_or_raise_is_its_failure_and_reaches_nobody(hooked, name, arguments, body):
    hooked(hook(name, arguments, body))
    assert hooks.fire(name, **({"config": {}} if arguments else {})) == []
    (failure,) = hooks.failures()
    assert (failure.plugin, failure.hook) == ("a", name) and (
        "must return" in failure.reason or "Panic" in failure.reason
    )
