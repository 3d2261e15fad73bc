"""Choosing the platform of a process (rules PF-5 to PF-11, LD-4)."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from plugrl.errors import PlatformNotFound, PlatformUnavailable, PluginError, UserError
from plugrl.platforms import (
    Available,
    PlatformBase,
    PlatformRegistry,
    Unavailable,
    get_platform,
    probing,
    reset,
    select,
    set_platform,
    use_platform,
)
from plugrl.platforms.probing import probe_all
from plugrl.platforms.selection import current_selection
from plugrl.plugins.guard import loading

Make = Callable[..., type[PlatformBase]]


def register(make: Make, name: str, *, usable: bool = True, priority: int = 50, aliases: tuple[str, ...] = ()) -> type:
    answer: Any = Available(2, "two devices") if usable else Unavailable("no device visible")
    cls = make(vendor_name=name)
    PlatformRegistry.register(platform=name, probe=lambda: answer, priority=priority, aliases=aliases)(cls)
    return cls


def test_argument_beats_variable_beats_priority(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, priority in (("low", 1), ("middle", 5), ("high", 90)):
        register(make_platform, name, priority=priority)
    monkeypatch.setenv("VERL_PLATFORM", "middle")
    assert select("low").platform_name == "low"
    assert select().platform_name == "middle"
    monkeypatch.delenv("VERL_PLATFORM")
    assert select().platform_name == "high"


@pytest.mark.parametrize("value", ["acme", " ACME ", "anvil", " Anvil"])
def test_variable_is_trimmed_and_resolves_aliases(
    value: str, make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(make_platform, "acme", aliases=("anvil",))
    monkeypatch.setenv("VERL_PLATFORM", value)
    selection = select()
    assert (selection.platform_name, selection.source) == ("acme", "VERL_PLATFORM")


@pytest.mark.parametrize("value", ["", "   "])
def test_empty_variable_means_automatic(value: str, make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    register(make_platform, "acme")
    monkeypatch.setenv("VERL_PLATFORM", value)
    assert select().source == "probe"


def test_unknown_name_is_an_error_at_once(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    register(make_platform, "acme")
    monkeypatch.setenv("VERL_PLATFORM", "acne")
    with pytest.raises(PlatformNotFound, match=r'"acne".*"acme".*Known: acme, cpu') as caught:
        get_platform()
    assert isinstance(caught.value, ValueError)


def test_highest_priority_wins_and_a_tie_below_is_fine(make_platform: Make) -> None:
    for name, priority in (("a", 5), ("b", 5), ("c", 50)):
        register(make_platform, name, priority=priority)
    assert select().platform_name == "c"


def test_many_unusable_platforms_are_one_short_line(make_platform: Make, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")  # which the cpu platform is made of
    for name in ("a", "b", "c"):
        register(make_platform, name, usable=False)
    get_platform()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "3 accelerators" in line and "(a, b, c)" in line and "plugrl plugins explain platform" in line
    assert "no device visible" in current_selection().why


def test_priority_below_zero_is_chosen_by_name_alone(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register(make_platform, "toy", priority=-1)
    monkeypatch.setenv("PLUGRL_STRICT", "1")
    assert select().platform_name == "cpu"
    pytest.importorskip("torch")  # which the cpu platform is made of
    get_platform()  # strict mode has no accelerator to miss
    assert "toy" not in caplog.text
    assert select("toy").probes[0].available


def test_tie_at_the_top_names_both_and_the_variable(make_platform: Make) -> None:
    register(make_platform, "a")
    register(make_platform, "b")
    with pytest.raises(UserError, match=r"a and b .*50.*VERL_PLATFORM"):
        get_platform()


def test_result_does_not_depend_on_the_order(make_platform: Make, platforms: Any) -> None:
    chosen = set()
    for order in itertools.permutations((("a", 5, True), ("b", 50, False), ("c", 10, True))):
        with platforms.temporary():
            for name, priority, usable in order:
                register(make_platform, name, priority=priority, usable=usable)
            chosen.add(select().platform_name)
        reset()
    assert chosen == {"c"}


def test_raising_probe_is_unavailable_and_kept(make_platform: Make) -> None:
    def explode() -> Any:
        raise OSError("libacme.so: wrong ABI")

    PlatformRegistry.register(platform="acme", probe=explode)(make_platform())
    assert select().platform_name == "cpu"
    record = next(record for record in probe_all() if record.platform == "acme")
    assert not record.available and "wrong ABI" in record.reason and "explode" in (record.traceback or "")


def test_probe_of_a_wrong_type_is_unavailable(make_platform: Make) -> None:
    PlatformRegistry.register(platform="acme", probe=lambda: True)(make_platform())
    assert "Available or Unavailable" in select().probes[0].reason


def test_without_a_probe_the_class_is_asked(make_platform: Make) -> None:
    asked = []

    def ask(self: Any, use_smi_check: bool = False) -> bool:
        asked.append(use_smi_check)
        return True

    PlatformRegistry.register(platform="acme")(make_platform(is_platform_available=ask))
    assert select().platform_name == "acme" and asked == [True]


def test_nothing_available_is_cpu_with_one_line(make_platform: Make, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")
    register(make_platform, "acme", usable=False)
    with caplog.at_level(logging.INFO):
        assert get_platform().device_name == "cpu"
    lines = [record.getMessage() for record in caplog.records if record.name == "plugrl.platforms.selection"]
    assert lines == ["Running on cpu: acme is installed but unusable (no device visible)."]


def test_named_but_unusable_is_an_error_with_the_reason(make_platform: Make) -> None:
    register(make_platform, "acme", usable=False)
    with pytest.raises(PlatformUnavailable, match=r"acme.*no device visible.*doctor"):
        get_platform("acme")
    assert current_selection() is None


def test_driver_may_hold_an_unusable_platform_with_one_warning(
    make_platform: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cls = register(make_platform, "acme", usable=False)
    with caplog.at_level(logging.INFO):
        assert type(get_platform("acme", allow_unavailable=True)) is cls
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_threads_share_one_instance_and_one_probe(make_platform: Make) -> None:
    probes, built = [], []

    def ask() -> Available:
        probes.append(1)
        return Available()

    def build(self: Any) -> None:
        built.append(1)

    PlatformRegistry.register(platform="acme", probe=ask)(make_platform(__init__=build))
    found: list[PlatformBase] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait(10)
        found.append(get_platform())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(map(id, found))) == 1 and len(found) == 8
    assert len(probes) == len(built) == 1
    probe_all()
    assert len(probes) == 1


def test_another_name_later_is_an_error_that_tells_who_chose(make_platform: Make) -> None:
    register(make_platform, "acme")
    register(make_platform, "other", priority=1)
    get_platform()
    assert get_platform("acme") is get_platform()
    with pytest.raises(UserError, match=r'"other".*"acme".*test_selection\.py:\d+'):
        get_platform("other")


def test_set_platform_checks_the_type(make_platform: Make) -> None:
    platform = make_platform()()
    set_platform(platform)
    assert get_platform() is platform
    for wrong in (None, "cpu", make_platform()):
        with pytest.raises(TypeError, match="PlatformBase"):
            set_platform(wrong)  # type: ignore[arg-type]
    assert get_platform() is platform


def test_use_platform_nests_and_restores_after_errors(make_platform: Make) -> None:
    outer, inner = make_platform()(), make_platform()()
    with use_platform(outer):
        with pytest.raises(RuntimeError, match="boom"), use_platform(inner):
            assert get_platform() is inner
            raise RuntimeError("boom")
        assert get_platform() is outer
        with pytest.raises(PlatformNotFound), use_platform("nothing"):
            pass
        assert get_platform() is outer
    assert current_selection() is None


def test_use_platform_takes_a_name(make_platform: Make) -> None:
    cls = register(make_platform, "acme")
    with use_platform("Acme") as platform:
        assert type(platform) is cls and get_platform() is platform
        selection = current_selection()
        assert selection is not None and selection.source == "argument"


def test_reset_forgets_platform_and_probes(make_platform: Make) -> None:
    pytest.importorskip("torch")
    usable = [False]
    probe = lambda: Available() if usable[0] else Unavailable("not yet")  # noqa: E731
    cls = make_platform()
    PlatformRegistry.register(platform="acme", probe=probe)(cls)
    assert get_platform().device_name == "cpu"
    usable[0] = True
    assert get_platform().device_name == "cpu"
    reset()
    assert type(get_platform()) is cls


def test_choosing_while_plugins_load_raises_in_the_plugin() -> None:
    pytest.importorskip("torch")
    with loading("eager"), pytest.raises(PluginError, match="eager"):
        get_platform()
    assert get_platform().device_name == "cpu"


def test_selection_is_plain_for_the_doctor(make_platform: Make) -> None:
    register(make_platform, "acme")
    plain = select().to_dict()
    assert plain["platform_name"] == "acme"
    assert [row["platform"] for row in plain["probes"]] == ["acme", "cpu"]


class Panic(BaseException):
    """What extensions in other languages raise."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("driver")])
def test_whatever_a_probe_raises_makes_its_platform_unusable_and_nothing_else(make_platform: Make, error: Any) -> None:
    def explode() -> Any:
        raise error

    PlatformRegistry.register(platform="acme", probe=explode)(make_platform())
    assert select().platform_name == "cpu" and type(error).__name__ in select().why


def test_a_probe_that_hangs_is_given_up(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(probing, "DEADLINE_S", 0.05)
    PlatformRegistry.register(platform="acme", probe=lambda: Available(release.wait(20)))(make_platform())
    assert select().platform_name == "cpu" and "no answer within 0.05 s" in select().why
    release.set()


def test_the_detail_of_a_probe_is_kept_as_text(make_platform: Make) -> None:
    PlatformRegistry.register(platform="acme", probe=lambda: Unavailable(threading))(make_platform())  # type: ignore[arg-type]
    assert "<module 'threading'" in next(record for record in probe_all() if record.platform == "acme").reason


@pytest.mark.parametrize("error", [RuntimeError("driver init failed"), SystemExit(3), Panic("driver")])
def test_a_platform_that_cannot_be_set_up_is_named(make_platform: Make, error: Any) -> None:
    def explode(self: Any) -> None:
        raise error

    PlatformRegistry.register(platform="acme", probe=lambda: Available(1))(make_platform(__init__=explode))
    with pytest.raises(PlatformUnavailable, match=rf'"acme".*cannot be set up: {type(error).__name__}'):
        get_platform()
    assert current_selection() is None


def test_strict_refuses_cpu_where_an_accelerator_is_installed(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PLUGRL_STRICT", "1")
    assert get_platform().device_name == "cpu"
    reset()
    register(make_platform, "acme", usable=False)
    with pytest.raises(PlatformUnavailable, match="PLUGRL_STRICT.*acme is installed but unusable"):
        get_platform()
    reset()
    assert get_platform("cpu").device_name == "cpu"


def test_a_variable_that_gives_way_to_the_configuration_is_said(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    register(make_platform, "acme")
    monkeypatch.setenv("VERL_PLATFORM", "ACME ")
    get_platform("acme")
    assert not caplog.records
    reset()
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    get_platform("acme")
    assert "VERL_PLATFORM is cpu; it gives way to acme" in caplog.text
