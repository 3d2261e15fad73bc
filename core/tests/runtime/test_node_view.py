"""What a node says of itself, and the row that the doctor makes of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.plugins import load_plugins
from plugrl.runtime.cluster_report import _report
from plugrl.runtime.node_view import NodeView, view_here
from plugrl.runtime.process import environment_of

MASK = "ACME_VISIBLE_DEVICES"


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="the system shows no environments")
def test_the_environment_of_a_process_is_the_one_it_was_started_with() -> None:
    code = "import os, sys; os.environ['ACME'] = 'later'; print(flush=True); sys.stdin.read()"
    given = {**os.environ, "ACME": "2,5=x"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = environment_of(process.pid)
        process.communicate(timeout=30)
    assert found is not None and found["ACME"] == "2,5=x"
    assert environment_of(2**22) is None


def test_a_view_holds_the_variables_that_are_set_and_the_answer_of_the_probe() -> None:
    view = view_here("cpu", (MASK, "VERL_PLATFORM"), {MASK: "", "HOME": "/root"})
    assert view.variables == {MASK: ""} and view.available and not view.error
    assert view.fingerprint == load_plugins().fingerprint and view.host
    unknown = view_here("no_such_platform", (), {})
    assert not unknown.available and "no_such_platform" in unknown.reason


def test_the_doctors_row_shows_differences_and_nodes_that_cannot_answer() -> None:
    ledger = load_plugins()
    whole = NodeView(available=True, count=8, variables={MASK: "0"}, fingerprint=ledger.fingerprint, rows=ledger.rows)
    same = _report("n1", "8 ACME", whole, ledger, "acme", MASK)
    assert (same.platform, same.mask, same.differences) == ("acme: 8 devices", "0", ())
    other = _report("n2", "", NodeView(reason="no board", broken=("Plugin x failed.",)), ledger, "acme", MASK)
    assert other.platform == "acme: not usable (no board)" and other.mask is None
    assert len(other.differences) == len(ledger.rows) + 1 and other.differences[-1] == "Plugin x failed."
    silent = _report("n3", "", NodeView(error="it did not answer"), ledger, "acme", MASK)
    assert silent.differences == ("it did not answer",)
