"""L0: what a plugin must keep to before any of its code is used. Needs neither torch nor the device."""

from __future__ import annotations

from typing import Any

from plugrl.plugins.check import check_plugin
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped, check, expect
from plugrl.testing.kit.context import Context

PROBE_BUDGET_S = 5.0
"""Wall time that a probe may take: it is asked at every start, also where the hardware is not there."""


@check("L0.loads", gate=True, fix="`plugrl plugins doctor NAME` shows the traceback.")
def loads(kit: Context) -> str:
    """The plugin's manifest is found, imported and accepted."""
    return _manifest(kit, "loads")


@check("L0.light_import", fix="Import them in the modules that the targets name, not in the manifest's.")
def light_import(kit: Context) -> str:
    """The import of the manifest brings in no large library."""
    return _manifest(kit, "light import")


@check("L0.import_time", fix="Move the work out of the manifest's module and its package.")
def import_time(kit: Context) -> str:
    """The import of the manifest stays within its budget."""
    return _manifest(kit, "import time")


@check("L0.targets_exist", fix="Write targets as package.module:attribute, and ship the module in the wheel.")
def targets_exist(kit: Context) -> str:
    """Every target of the manifest stands in a module that is installed."""
    return _manifest(kit, "targets exist")


@check("L0.loads_twice", fix="Register the same objects at each import, without side effects elsewhere.")
def loads_twice(kit: Context) -> str:
    """Loading the plugin a second time changes nothing."""
    return _manifest(kit, "loading twice changes nothing")


@check("L0.capabilities_declared", fix="List in PlatformEntry(capabilities=...) what the device can do.")
def capabilities_declared(kit: Context) -> str:
    """A platform declares what it can do; one that declares nothing has nothing to show at later levels."""
    _need_platform(kit)
    from plugrl.platforms.registry import declared_capabilities
    from plugrl.plugins import load_plugins

    load_plugins(fatal=False, quiet=True)
    declared = declared_capabilities(kit.platform_name)
    if not declared:
        raise CheckSkipped(f'platform "{kit.platform_name}" declares no capability, so that L1 to L5 ask for nothing')
    return f"{len(declared)} declared"


_PROBE = """
import os, sys, time
from plugrl.plugins import load_plugins
load_plugins(fatal=False, quiet=True)
from plugrl.platforms.registry import PLATFORMS
from plugrl.registry import import_target
entry = PLATFORMS.entry({name!r})
ask = entry.meta["probe"]
if isinstance(ask, str):
    ask = import_target(ask)
    started = time.monotonic()
    said = ask()
    spent = time.monotonic() - started
    torch = sys.modules.get("torch")
    device = getattr(torch, entry.meta["device"] or "", None) if torch is not None else None
    state = getattr(device, "is_initialized", None)
    answer = dict(kind=type(said).__name__, reason=getattr(said, "reason", getattr(said, "detail", "")),
                  seconds=spent, torch=torch is not None, initialized=bool(state and state()))
else:
    answer = dict(kind="none")
"""


def _probe(kit: Context, env: dict[str, str]) -> dict[str, Any]:
    _need_platform(kit)
    answer: dict[str, Any] = kit.in_process(_PROBE.format(name=kit.platform_name), env=env, timeout_s=45.0)
    if answer["kind"] == "none":
        raise CheckSkipped("the platform is registered without a probe that a manifest names")
    return answer


@check("L0.probe.answers", fix="Return Available or Unavailable(reason); ask a file or the driver, not the SDK.")
def probe_answers(kit: Context) -> str:
    """The probe answers in time with Available, or with Unavailable and a reason."""
    found = _probe(kit, {})
    expect(found["kind"] in ("Available", "Unavailable"), f"the probe returns a {found['kind']}")
    expect(found["kind"] == "Available" or str(found["reason"]).strip(), "the probe says Unavailable without a reason")
    expect(found["seconds"] <= PROBE_BUDGET_S, "the probe is slow", got=f"{found['seconds']:.1f} s",
           expected=f"at most {PROBE_BUDGET_S:g} s")  # fmt: skip
    return f"{found['kind']} in {1000 * found['seconds']:.0f} ms"


@check("L0.probe.initialises_nothing", fix="A process that has initialised a device can start no children that use it.")
def probe_initialises_nothing(kit: Context) -> str:
    """The probe does not initialise the device."""
    found = _probe(kit, {})
    expect(not found["initialized"], "the device is initialised after the probe")
    return "torch was imported, the device was left alone" if found["torch"] else "torch was not imported"


@check("L0.probe.without_sdk", fix="Let the probe look for the SDK and give its absence as the reason.")
def probe_without_sdk(kit: Context) -> str:
    """Where no library of the vendor can be loaded the probe still answers, with a reason."""
    from plugrl.platforms.registry import PLATFORMS
    from plugrl.plugins import load_plugins

    _need_platform(kit)
    load_plugins(fatal=False, quiet=True)
    if kit.platform_name not in PLATFORMS or not kit.plugin:
        raise CheckSkipped("a built-in platform needs no SDK")
    hidden = _HIDE_TORCH + _PROBE.format(name=kit.platform_name)
    found = kit.in_process(hidden, env={"LD_LIBRARY_PATH": ""}, timeout_s=45.0)
    if found["kind"] == "none":
        raise CheckSkipped("the platform is registered without a probe that a manifest names")
    expect(found["kind"] in ("Available", "Unavailable"), f"without torch the probe returns a {found['kind']}")
    expect(str(found["reason"]).strip(), f"without torch the probe says {found['kind']} and not why")
    return f"{found['kind']}: {found['reason']}"


_HIDE_TORCH = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Hidden())
"""


def _manifest(kit: Context, name: str) -> str:
    if not kit.plugin:
        raise CheckSkipped("it is built into plugrl and has no manifest")
    rows = kit.cache.get("manifest")
    if rows is None:
        rows = kit.cache["manifest"] = {row.name: row for row in check_plugin(kit.plugin)}
    row = rows.get(name)
    if row is None:
        raise CheckSkipped("the plugin does not load, so there is nothing to look at")
    if not row.ok:
        raise CheckFailed(row.detail)
    return str(row.detail)


def _need_platform(kit: Context) -> None:
    if not kit.platform_name:
        raise CheckSkipped("the plugin contributes no platform")
