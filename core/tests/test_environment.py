"""The variables: what each value means, and that a wrong one is named."""

from __future__ import annotations

import pytest

from plugrl.environment import Environment, in_force, read_environment, unknown_variables
from plugrl.errors import ConfigError


def test_nothing_set_is_the_default():
    assert read_environment({}) == Environment()


def test_values_are_trimmed_and_blank_is_unset_except_for_the_plugin_list():
    source = {"VERL_PLATFORM": " acme ", "VERL_ENGINE_VENDOR": " ", "PLUGRL_PLUGINS": "", "PLUGRL_CPU_DEVICES": "4"}
    read = read_environment(source)
    assert (read.platform, read.engine_vendor, read.plugins, read.cpu_devices) == ("acme", None, "", 4)
    assert read_environment({"RLINF_EXT_MODULE": " a, ,b,a "}).ext_modules == ("a", "b")


@pytest.mark.parametrize(("text", "strict"), [("1", True), ("True", True), ("0", False), ("", False), ("off", False)])
def test_strict(text, strict):
    assert read_environment({"PLUGRL_STRICT": text}).strict is strict


@pytest.mark.parametrize(
    "source",
    [{"PLUGRL_STRICT": "maybe"}, *({"PLUGRL_CPU_DEVICES": text} for text in ("0", "-1", "two", "\u00b2", "9" * 5000))],
)
def test_a_wrong_value_names_the_variable(source):
    with pytest.raises(ConfigError, match=next(iter(source))):
        read_environment(source)


def test_in_force_shows_only_what_belongs_to_plugrl_and_unknown_ones_get_a_hint():
    source = {"PLUGRL_STRCT": "1", "HOME": "/x", "VERL_PLATFORM": "cpu", "VERL_OTHER": "1"}
    assert in_force(source) == {"PLUGRL_STRCT": "1", "VERL_PLATFORM": "cpu"}
    assert unknown_variables(source) == {"PLUGRL_STRCT": "PLUGRL_STRICT"}
