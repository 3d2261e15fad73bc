"""The generic registry: one duplicate rule, lazy targets whose failure is kept, provenance, all or nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from plugrl.errors import DuplicateRegistration, MissingDependency, ModelNotFound, NotRegistered, PluginError
from plugrl.provenance import Origin, registering
from plugrl.registry import Registration, Registry, registries, staging
from plugrl.targets import missing_in_source


def one(text: str = "") -> str:
    return text


def two(text: str = "") -> str:
    return text + text


A = Origin(plugin="a", distribution="acme-a", version="1.0", file="/x/a.py", line=3)
B = Origin(plugin="b", distribution="acme-b", version="2.0", file="/x/b.py", line=9)


@pytest.fixture
def registry() -> Registry[Callable[..., str]]:
    return Registry("reward")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a module of that name to the import path and return the name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        return name

    return write


def test_names_ignore_case_and_space_and_aliases_lead_to_the_name(registry):
    registry.register(" GSM8K ", one, aliases=("math",))
    assert registry.get("gsm8k") is one and registry.get("Math") is one
    assert registry.keys() == ("gsm8k",) and "MATH" in registry and registry.canonical("math") == "gsm8k"


def test_the_same_object_again_is_nothing(registry):
    registry.register("x", one, origin=A)
    registry.register("x", one, origin=B)
    registry.register("x", one, origin=B, force=True)
    assert registry.entry("x").origin == A and registry.entry("x").history == ()


def test_another_object_is_an_error_that_names_both_origins(registry):
    registry.register("x", one, origin=A)
    with pytest.raises(DuplicateRegistration) as caught:
        registry.register("x", two, origin=B)
    parts = ("reward x", "acme-a 1.0 (a.py:3)", "acme-b 2.0 (b.py:9)", "force")
    assert all(part in str(caught.value) for part in parts)
    assert registry.get("x") is one


def test_force_overrides_keeps_the_history_and_warns(registry, caplog):
    registry.register("x", one, origin=A)
    registry.register("x", two, origin=B, force=True)
    assert registry.get("x") is two
    assert [past.origin for past in registry.entry("x").history] == [A]
    assert registry.describe()[0]["overrides"] == ["acme-a 1.0 (a.py:3)"]
    assert "acme-a 1.0" in caplog.text and "acme-b 2.0" in caplog.text


def test_force_that_overrides_nothing_warns(registry, caplog):
    registry.register("x", one, force=True)
    assert "overrode nothing" in caplog.text


def test_an_alias_cannot_be_taken_even_by_force(registry):
    registry.register("x", one, aliases=("y",))
    for attempt in ({"key": "y"}, {"key": "z", "aliases": ("x",)}, {"key": "z", "aliases": ("y",)}):
        with pytest.raises(DuplicateRegistration):
            registry.register(attempt["key"], two, aliases=attempt.get("aliases", ()), force=True)
    assert registry.keys() == ("x",) and registry.get("y") is one


def test_many_registrations_are_all_or_nothing(registry):
    registry.register("x", one)
    claims = [Registration(key="new", value=two), Registration(key="x", value=two)]
    with pytest.raises(DuplicateRegistration):
        registry.register_many(claims)
    assert registry.keys() == ("x",)


def test_a_reloaded_module_renews_its_object(registry, module):
    source = "def build():\n    pass\n\n\ndef register(registry):\n    registry.register('x', build)\n"
    name = module("reloaded_module", source)
    first = __import__(name)
    first.register(registry)
    sys.modules.pop(name)
    second = __import__(name)
    assert first is not second
    second.register(registry)
    assert registry.get("x") is second.build and registry.entry("x").history == ()


def test_local_functions_of_one_place_are_different_objects(registry):
    def make(n: int) -> Callable[..., str]:
        return lambda text="": text * n

    registry.register("x", make(1))
    with pytest.raises(DuplicateRegistration):
        registry.register("x", make(2))


def test_a_target_is_imported_on_first_get_and_only_then(registry, module):
    name = module("lazy_target", "def score(text):\n    return 1.0\n")
    registry.register_target("x", f"{name}:score")
    assert name not in sys.modules and registry.describe()[0]["loaded"] is False
    assert registry.get("x") is sys.modules[name].score
    assert registry.describe()[0]["loaded"] is True


def test_a_target_and_its_own_object_are_the_same(registry, module):
    name = module("decorated_target", "def score(text):\n    return 1.0\n")
    registry.register_target("x", f"{name}:score", origin=A)
    registry.register("x", __import__(name).score, origin=B)
    assert registry.entry("x").origin == A


def test_the_failure_of_a_target_is_kept_with_its_traceback(registry, module):
    source = "import sys\nsys.tries = getattr(sys, 'tries', 0) + 1\nraise OSError('bad ABI')\n"
    name = module("failing_target", source)
    registry.register_target("x", f"{name}:score", origin=A)
    texts = []
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            registry.get("x")
        assert isinstance(caught.value.__cause__, OSError)
        texts.append(str(caught.value))
    assert texts[0] == texts[1] and "acme-a 1.0" in texts[0] and "OSError: bad ABI" in texts[0]
    assert sys.__dict__.pop("tries") == 1
    described = registry.describe()[0]
    assert described["error"] == texts[0] and "failing_target.py" in described["traceback"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("json:dump_s", ("json", "dump_s", "dumps")),
        ("no_such_module_here:x", ("no_such_module_here",)),
        ("json", ("json", "package.module:attribute")),
    ],
)
def test_a_target_that_does_not_exist_says_what_is_missing(registry, target, words):
    registry.register_target("x", target)
    with pytest.raises(PluginError) as caught:
        registry.get("x")
    assert all(word in str(caught.value) for word in words)


def test_sys_exit_in_a_target_is_a_failure_of_that_target(registry, module):
    registry.register_target("x", f"{module('exiting_target', 'raise SystemExit(3)')}:score")
    with pytest.raises(PluginError, match="SystemExit"):
        registry.get("x")


def test_missing_needs_give_the_install_command(registry):
    registry.register_target("x", "json:dumps", needs=("json", "no_such_module_here"), origin=A)
    with pytest.raises(MissingDependency) as caught:
        registry.get("x")
    assert "no_such_module_here" in str(caught.value) and "pip install acme-a" in str(caught.value)


def test_an_unknown_key_names_candidates_and_the_nearest():
    registry: Registry[object] = Registry("model", not_found=ModelNotFound)
    registry.register("causal_lm", one)
    registry.register("openvla", two)
    with pytest.raises(ModelNotFound) as caught:
        registry.get("causal-lm")
    assert all(part in str(caught.value) for part in ('"causal-lm"', 'Did you mean "causal_lm"', "causal_lm, openvla"))
    assert registry.find("causal-lm") is None
    with pytest.raises(NotRegistered):
        registry.entry("nothing")


def test_check_refuses_an_object_at_once_and_a_target_at_first_use(module):
    def check(key: object, value: object) -> None:
        if not callable(value):
            raise PluginError(f"{key} is not callable")

    registry: Registry[object] = Registry("reward", check=check)
    with pytest.raises(PluginError, match="not callable"):
        registry.register("x", 3)
    registry.register_target("y", f"{module('unfit_target', 'score = 3')}:score")
    with pytest.raises(PluginError, match="not callable"):
        registry.get("y")
    assert registry.keys() == ("y",)


def test_tuple_keys_are_normalised_part_by_part():
    registry: Registry[object] = Registry("engine")
    registry.register(("LM", "fsdp2", "*", None), one)
    assert registry.get((" lm", "FSDP2", "*", None)) is one
    assert registry.describe()[0]["key"] == "lm/fsdp2/*"


@pytest.mark.parametrize("key", ["", "  ", None, ()])
def test_an_empty_key_is_refused(registry, key):
    with pytest.raises(PluginError, match="empty key"):
        registry.register(key, one)


def test_the_origin_is_the_caller_or_what_the_loader_put_in_force(registry):
    registry.register("x", one)
    origin = registry.entry("x").origin
    assert origin.source == "decorator" and origin.file == __file__ and origin.line > 0
    with registering(A):
        registry.register("y", two)
    origin = registry.entry("y").origin
    assert (origin.plugin, origin.version, origin.file) == ("a", "1.0", __file__)


def test_staging_collects_instead_of_storing(registry):
    with staging() as claims:
        registry.register("x", one)
    assert registry.keys() == () and [claim.key for _, claim in claims] == ["x"]


def test_temporary_restores_the_content_whatever_happens(registry):
    registry.register("x", one)
    with pytest.raises(RuntimeError), registry.temporary():
        registry.register("x", two, force=True)
        registry.register("y", two)
        raise RuntimeError
    assert registry.keys() == ("x",) and registry.get("x") is one


def test_two_threads_get_one_object(registry, module):
    name = module("slow_target", "import time\ntime.sleep(0.05)\n\n\ndef score(text):\n    return 1.0\n")
    registry.register_target("x", f"{name}:score")
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(registry.get("x"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 4 and len(set(map(id, found))) == 1


def test_every_kind_has_a_registry_and_its_built_ins_say_where_they_come_from():
    found = registries()
    assert list(found)[0] == "platform" and "cpu" in found["platform"]
    for registry in found.values():
        for row in registry.describe():
            if row["origin"]["plugin"] is None and row["origin"]["source"] == "built-in":
                assert row["origin"]["file"].endswith(".py") and row["origin"]["line"] > 0


def test_force_on_a_name_that_is_anothers_alias_says_that_it_does_not_help(registry):
    registry.register("x", one, aliases=("y",))
    with pytest.raises(DuplicateRegistration, match="name of x, which force does not take away") as caught:
        registry.register("y", two, force=True)
    assert "register with force" not in str(caught.value)


def test_a_parent_package_that_raises_makes_a_need_missing(registry, module):
    module("raising_parent", "raise RuntimeError('no licence')")
    registry.register_target("x", "json:dumps", needs=("raising_parent.child",))
    with pytest.raises(MissingDependency, match=r"raising_parent\.child"):
        registry.get("x")
    assert "no licence" in missing_in_source("raising_parent.child:f")


@pytest.mark.parametrize("source", [b"def (:", b"x = '\xff'", b"\0"])
def test_a_target_whose_source_cannot_be_parsed_is_missing(module, tmp_path, source):
    (tmp_path / f"{module('unreadable_target', '')}.py").write_bytes(source)
    assert "cannot be read" in missing_in_source("unreadable_target:f")


def test_what_a_registry_module_registers_is_built_in_even_while_a_plugin_is_loading(registry):
    """The first import of a registry module may be a plugin's: what is built in must not go when that plugin fails."""
    code = compile("registry.register('built_in', one)", "registry.py", "exec")
    with staging() as claims, registering(A):
        exec(code, {"__name__": "plugrl.parts.registry", "registry": registry, "one": one})
        registry.register("of_the_plugin", two)
    assert registry.keys() == ("built_in",) and registry.entry("built_in").origin.owner == "plugrl"
    assert [claim.key for _, claim in claims] == ["of_the_plugin"]


def test_a_block_may_begin_with_the_built_in_entries_alone() -> None:
    registry: Registry[object] = Registry("thing")
    registry.register_target("own", "os:sep", origin=Origin(source="built-in"))
    registry.register("foreign", object(), aliases=("alien",))
    with registry.temporary(built_in_only=True):
        assert list(registry.keys()) == ["own"] and "alien" not in registry
        registry.register("alien", object())
    assert set(registry.keys()) == {"own", "foreign"} and registry.canonical("alien") == "foreign"
