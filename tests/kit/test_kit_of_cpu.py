"""The kit as its users meet it: on the built-in platform, by the command line, and as tests of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

DEADLINE_S = 200


def run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, without variables that choose plugins or platforms."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PLUGRL_", "VERL_", "RLINF_", "PYTEST"))}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env={**clean, **variables}, capture_output=True,
                          text=True, timeout=DEADLINE_S)  # fmt: skip


def test_the_built_in_platform_conforms_and_its_record_is_written(tmp_path: Path) -> None:
    done = run("-m", "plugrl", "plugins", "check", "cpu", "--level", "L0-L2", "--json", "a.json", "--junit", "a.xml",
               "--markdown", "a.md", folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads((tmp_path / "a.json").read_text())["reports"]
    assert report["capabilities"]["numerics.bf16"] == "supported"
    assert report["capabilities"]["platform.ipc"] == "not_declared"
    assert "failed 0" in report["summary"] and report["versions"]["torch"] and report["devices"].endswith("x cpu")
    assert "cpu conforms to L0-L2" in done.stdout and "not declared: platform.index" in done.stdout
    suites = ElementTree.parse(tmp_path / "a.xml").getroot().findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["cpu.L0", "cpu.L1", "cpu.L2"]
    assert "| L2 | `numerics.fp32` | yes |" in (tmp_path / "a.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cpux", "--level", "L0"), 'No plugin and no platform "cpux" is installed. Did you mean cpu?'),
        (("cpu", "--level", "L9"), '"L9" is no level'),
        (("cpu", "--level", "engine"), "None of engine applies to cpu"),
        (("cpu", "--only", "L1.no.such"), "--only: there is no check L1.no.such in L1 of cpu"),
    ],
)
def test_a_slip_on_the_command_line_is_one_message_and_exit_code_1(tmp_path: Path, arguments, words: str) -> None:
    done = run("-m", "plugrl", "plugins", "check", *arguments, folder=tmp_path)
    assert done.returncode == 1 and words in done.stderr + done.stdout and "Traceback" not in done.stderr


PYPROJECT = """
[tool.plugrl-conformance]
plugin = "cpu"
levels = ["L0-L1"]
xfail = [
    {check = "L1.rng.generator", reason = "for a test", issue = "https://acme/1"},
    {check = "L1.acme.fails", reason = "driver 3", issue = "https://acme/2"},
]
modules = ["own_checks"]
env = {PLUGRL_CPU_DEVICES = 3}
"""
OWN = '''
from plugrl.testing.kit.checks import check, expect_equal

@check("L1.acme.count")
def count(kit):
    """The variable of the table is there."""
    expect_equal(kit.platform.device_count(), 3, "the number of devices")

@check("L1.acme.fails")
def fails(kit):
    """It fails."""
    expect_equal(1, 2, "the number")

@check("L1.acme.breaks")
def breaks(kit):
    """It fails and nobody expects it."""
    raise OSError("libacme.so.1")
'''


@pytest.mark.slow
def test_a_vendor_gets_the_kit_as_tests_by_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "own_checks.py").write_text(OWN)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_conformance.py").write_text("from plugrl.testing.platform import *  # noqa: F403\n")
    done = run("-m", "pytest", "-p", "no:cacheprovider", "-rA", "tests", folder=tmp_path, PYTHONPATH=str(tmp_path))
    text = done.stdout
    assert done.returncode == 1 and "1 failed" in text, text + done.stderr
    assert "FAILED tests/test_conformance.py::test_conformance[cpu-L1.acme.breaks]" in text and "libacme.so.1" in text
    for words in ("PASSED tests/test_conformance.py::test_conformance[cpu-L1.acme.count]",
                  "XFAIL tests/test_conformance.py::test_conformance[cpu-L1.acme.fails]",
                  "PASSED tests/test_conformance.py::test_conformance[cpu-something was executed]",
                  "take it off the list", "not declared platform.ipc"):  # fmt: skip
        assert words in text, words


def test_a_test_file_without_a_table_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_conformance.py").write_text("from plugrl.testing.platform import *  # noqa: F403\n")
    done = run("-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", ".", "test_conformance.py", folder=tmp_path)
    assert done.returncode != 0 and "add [tool.plugrl-conformance] with plugin" in done.stdout


# --------------------------------------------------------------------- manifests and probes that are wrong
PROBES = {
    "initialises": ("L0.probe.initialises_nothing", "the device is initialised"),
    "silent": ("L0.probe.answers", "without a reason"),
    "strange": ("L0.probe.answers", "the probe returns a dict"),
    "needs_torch": ("L0.probe.without_sdk", "No module named 'torch'"),
    "hurried": ("", ""),
}
PLUGIN = '''
from plugrl.plugins import PLUGIN_API, PlatformEntry, Plugin

plugin = Plugin(name="acme_probes", api=PLUGIN_API, requires_core=">=0.1", summary="for a test", platforms=tuple(
    PlatformEntry(name=name, vendor=name, device="acme", target="acme_probes:plugin", probe=f"acme_probes:{{name}}",
                  capabilities=("platform.devices",))
    for name in {names!r}))

def initialises():
    import sys, types
    from plugrl.platforms import Available
    device = types.SimpleNamespace(is_initialized=lambda: True)
    sys.modules["torch"] = types.SimpleNamespace(acme=device)
    return Available(detail="two boards")

def silent():
    from plugrl.platforms import Unavailable
    return Unavailable("")

def strange():
    return {{}}

def needs_torch():
    import torch
    from plugrl.platforms import Available
    return Available(detail="two boards")

def hurried():
    from plugrl.platforms import Unavailable
    return Unavailable("no board in /dev")
'''


@pytest.fixture(scope="module")
def wrong_probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed plugin of platforms whose probes are wrong."""
    folder = tmp_path_factory.mktemp("probes")
    (folder / "acme_probes.py").write_text(PLUGIN.format(names=tuple(PROBES)))
    metadata = folder / "acme_probes-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-probes\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[plugrl.plugins]\nacme_probes = acme_probes:plugin\n")
    return folder


@pytest.mark.parametrize("name", PROBES)
def test_what_is_wrong_with_a_probe_is_found(wrong_probes: Path, name: str, tmp_path: Path) -> None:
    check, words = PROBES[name]
    only = [part for id in PROBES.values() if id[0] for part in ("--only", id[0])]
    done = run("-m", "plugrl", "plugins", "check", name, "--level", "L0", "--json", "-", *only, folder=tmp_path,
               PYTHONPATH=str(wrong_probes))  # fmt: skip
    (report,) = json.loads(done.stdout)["reports"]
    failed = {row["id"]: row["detail"] for row in report["results"] if row["status"] == "failed"}
    assert (done.returncode == 1) is bool(check) and bool(failed) is bool(check), failed
    if check:
        assert words in failed[check], failed
