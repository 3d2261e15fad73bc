"""Plugins that are whole in the driver and broken elsewhere: the error names plugin, node and reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.testing.ray_nodes import RayNode, ray_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DRIVER = Path(__file__).with_name("two_nodes_driver.py")
DEADLINE_S = 280
# What each package of tests/packages says of itself where it is broken.
REASONS = {
    "broken_import": "RuntimeError: broken on purpose",
    "fails_registering": "gpu",
    "incompatible_core": ">=99",
    "not_a_plugin": "dict",
    "old_api": "plugin API 0",
    "oserror_import": "OSError: libacme.so.1",
    "resolves_platform": "while plugins load",
    "sys_exit_import": "SystemExit: 3",
}
# Not broken, but not the driver's: one is of another version here, one is not installed there at all.
DIFFERENT = {"slow_import": "0.0.9", "only_on_the_driver": "1.0.0"}
MANIFEST = """
from plugrl.plugins import PLUGIN_API, Plugin

plugin = Plugin(name={name!r}, api=PLUGIN_API, requires_core=">=0.1", summary="whole")
"""


def install_whole(folder: Path, name: str, version: str) -> None:
    """Put a package that works into ``folder``, under the name of one that does not."""
    distribution = f"plugrl_test_{name}" if name in REASONS or name == "slow_import" else f"plugrl_{name}"
    info = folder / f"{distribution}-{version}.dist-info"
    info.mkdir(parents=True)
    title = distribution.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[plugrl.plugins]\n{name} = {name}.plugin:plugin\n")
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(MANIFEST.format(name=name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's packages."""
    folder = tmp_path_factory.mktemp("whole")
    for name in REASONS:
        install_whole(folder, name, "0.1.0")
    for name, version in DIFFERENT.items():
        install_whole(folder, name, version)
    return folder


@pytest.fixture(scope="module")
def cluster(installed: Path, whole: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of two nodes, the second with the broken packages, and the driver's variables."""
    common = {
        "RLINF_EXT_MODULE": "plugrl.testing.boards",
        "PLUGRL_PLUGINS": ",".join([*REASONS, *DIFFERENT]),
        "VERL_PLATFORM": "boards",
    }
    nodes = [
        RayNode(name="first", env={"PYTHONPATH": str(whole)}, resources={"BOARD": 1}),
        RayNode(name="second", env={"PYTHONPATH": str(installed)}, resources={"BOARD": 1}),
    ]
    with ray_nodes(nodes) as address:
        yield address, {**os.environ, **common, "PYTHONPATH": str(whole)}


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a Python process with the driver's packages."""
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


@pytest.fixture(scope="module")
def outcomes(cluster: tuple[str, dict[str, str]], installed: Path) -> dict[str, Any]:
    """What became of each group of the driver."""
    address, environment = cluster
    done = run([str(DRIVER), address, str(installed)], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_a_node_with_whole_plugins_works(outcomes: dict[str, Any]) -> None:
    assert outcomes["whole node"] == ["ready", ["first (127.0.0.1)"]]


@pytest.mark.parametrize(("where", "node"), [("both nodes", "second"), ("broken worker", "first")])
def test_each_broken_plugin_is_named_with_node_and_reason(outcomes: dict[str, Any], where: str, node: str) -> None:
    kind, text = outcomes[where]
    assert kind == "FingerprintMismatch" and f"(node {node} (127.0.0.1))" in text
    for name, reason in REASONS.items():
        title = f"plugrl-test-{name.replace('_', '-')} 0.1.0"
        state = "incompatible" if name in ("incompatible_core", "old_api") else "failed"
        assert f"has {title} {state}; in the driver it is active" in text
        assert reason in text.partition("Install the same set on every node.")[2]


def test_other_versions_and_missing_plugins_are_named(outcomes: dict[str, Any]) -> None:
    _, text = outcomes["both nodes"]
    assert "has plugrl-test-slow-import 0.1.0; the driver has 0.0.9" in text
    assert "lacks plugrl-only-on-the-driver 1.0.0, which the driver has" in text


def test_the_doctor_shows_a_row_for_each_node_of_a_cluster(cluster: tuple[str, dict[str, str]]) -> None:
    address, environment = cluster
    call = "import sys; from plugrl.cli.app import main; main(sys.argv[1:])"
    done = run(["-c", call, "plugins", "doctor", "--cluster", address, "--json"], environment)
    assert done.returncode == 1, done.stdout + done.stderr
    first, second = json.loads(done.stdout)["nodes"]
    assert (first["node"], first["resource"], first["mask"]) == ("first (127.0.0.1)", "1 BOARD", None)
    assert first["differences"] == [] and first["platform"] == "boards: 8 devices (boards for tests)"
    assert first["fingerprint"] == json.loads(done.stdout)["fingerprint"] != second["fingerprint"]
    assert any("SystemExit: 3" in text for text in second["differences"])
