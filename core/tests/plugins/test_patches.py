"""Patches: applied once, only to what they are meant for, and not for ever."""

from __future__ import annotations

import sys

import pytest

from plugrl.environment import Environment
from plugrl.errors import PluginError
from plugrl.plugins import patches


@pytest.fixture
def patched(bench, monkeypatch):
    """Load one plugin per set of changes to a patch of ``victim:Class.method``, named a and b; return the ledger."""
    monkeypatch.setattr(patches, "_applied", {})
    bench.module("victim", "class Class:\n    @staticmethod\n    def method():\n        return 'old'\n")
    bench.module("surgeon", "def method():\n    return 'new'\n")

    def load(*changes: str, strict: bool = False):
        for name, change in zip("ab", changes, strict=False):
            arguments = "target='victim:Class.method', replacement='surgeon:method', reason='no seam', "
            arguments += "remove_in='99', applies_to='pluggy>=1', "
            bench.plugin(name, f"patches=(Patch(**{{**dict({arguments}), **dict({change})}}),)")
        return bench.load(Environment(strict=strict))

    return load


def test_a_patch_is_applied_once(patched):
    ledger = patched("")
    patches.apply_patches(ledger)
    patches.apply_patches(ledger)
    assert sys.modules["victim"].Class.method() == "new" and len(patches.applied_patches()) == 1


@pytest.mark.parametrize("range_", ["pluggy>=99", "no-such-distribution-here"])
def test_it_is_left_out_where_it_does_not_apply(patched, range_):
    patches.apply_patches(patched(f"applies_to={range_!r}"))
    assert patches.applied_patches() == ()


def test_a_target_that_is_gone_names_the_plugin(patched):
    with pytest.raises(PluginError, match="Plugin a cannot patch victim:Class.gone"):
        patches.apply_patches(patched("target='victim:Class.gone'"))


def test_two_plugins_cannot_patch_the_same_thing(patched):
    with pytest.raises(PluginError, match="a and b both patch"):
        patches.apply_patches(patched("", ""))


def test_an_expired_patch_is_an_error_in_strict_mode(patched):
    (error,) = patched("remove_in='0.0.1'", strict=True).errors
    assert "victim:Class.method" in str(error) and "0.0.1" in str(error)
