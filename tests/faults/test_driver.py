"""Faults of the driver at each phase of a step: it goes on, or it ends and nothing of it is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
from driver import FAULTS, FREEZE_S, INTERRUPTED, LISTEN
from table import record
from trial import LIMIT_S, PHASES, Cell, Outcome

from plugrl import errors
from plugrl.runtime.process import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DRIVER = Path(__file__).with_name("driver.py")
WAIT_S = 420
SHM_BYTES = 400 * 2**20
ENDED = "error: the driver ended before it could clean up"


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, Outcome]]:
    """What was measured, printed in the end."""
    found: dict[Cell, Outcome] = {}
    yield found
    record(found)


def start(folder: Path, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    (folder / "ray").mkdir()
    return subprocess.Popen(
        [*before, sys.executable, str(DRIVER), str(folder), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "RAY_TMPDIR": str(folder / "ray")},
    )  # fmt: skip


def state_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    state: dict[str, Any] = json.loads(line)
    return state


def left(state: dict[str, Any]) -> dict[str, Any]:
    """Return what is still there of a driver that has ended."""
    listening = {
        fields[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[3] == LISTEN
    }
    found = {
        "pids": [pid for pid in state["pids"] if is_alive(pid)],
        "ports": [port for port in state["ports"] if port in listening],
        "files": [path for path in (*state["shared_memory"], state["run_directory"]) if os.path.exists(path)],
    }
    return {what: items for what, items in found.items() if items}


@contextmanager
def new_folder() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    path = Path(tempfile.mkdtemp(prefix="f"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    with new_folder() as path:
        yield path


def ended(number: int, phase: str) -> tuple[int, Outcome, dict[str, Any]]:
    """Return what a driver exits with that gets a signal in a phase, how long it takes to be gone, and what is left."""
    with new_folder() as folder:
        process = start(folder, phase, str(number))
        state = state_of(process)
        assert state["ports"] and state["pids"], state
        _, text = process.communicate(timeout=WAIT_S)
        began = time.monotonic()
        while left(state) and time.monotonic() - began < LIMIT_S:
            time.sleep(0.05)
        return process.returncode, Outcome(f"exit {process.returncode}", text, time.monotonic() - began), left(state)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", ["kill", "interrupt"])
def test_nothing_is_left_of_a_driver_that_ends(outcomes: dict[Cell, Outcome], fault: str, phase: str) -> None:
    killed = fault == "kill"
    code, outcome, remains = ended(int(signal.SIGKILL if killed else signal.SIGINT), phase)
    outcomes[Cell("driver", fault, phase)] = outcome
    assert remains == {}
    assert code == (-signal.SIGKILL if killed else INTERRUPTED), outcome
    assert (ENDED in outcome.text) == killed, outcome


def lines_of(process: subprocess.Popen[str]) -> tuple[dict[str, Any], dict[Cell, Outcome]]:
    state = state_of(process)
    lines, text = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, text
    found = {}
    for line in lines.splitlines():
        one = json.loads(line)
        cell = Cell("driver", one.pop("fault"), one.pop("phase"))
        found[cell] = Outcome(**one)
    assert left(state) == {}
    return state, found


def test_a_driver_goes_on_after_what_it_survives(folder: Path, outcomes: dict[Cell, Outcome]) -> None:
    _, found = lines_of(start(folder, "all"))
    outcomes |= found
    expected = {
        "exception": "ValueError", "memory": "MemoryError", "closed": "ChannelClosed", "orphaned": "PeerLostError",
        "freeze": "",
    }  # fmt: skip
    assert set(found) == {Cell("driver", fault, phase) for fault in (*FAULTS, "orphaned") for phase in PHASES}
    for cell, outcome in found.items():
        assert outcome.seconds < LIMIT_S + (FREEZE_S if cell.fault == "freeze" else 0), (cell, outcome)
        if cell.fault == "full":
            typed = issubclass(getattr(errors, outcome.error, Exception), errors.PlugRLError)
            assert not outcome.error or typed, (cell, outcome)
        else:
            assert outcome.error == expected[cell.fault], (cell, outcome)


def own_memory() -> tuple[str, ...]:
    """Return the command that gives the next one a small /dev/shm of its own; skips where that is not allowed."""
    script = f'mount -t tmpfs -o size={SHM_BYTES} none /dev/shm && exec "$@"'
    before = ("unshare", "--mount", "/bin/sh", "-c", script, "sh")
    if shutil.which("unshare") is None or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("this process may not mount anything")
    return before


def test_a_full_shared_memory_is_no_hang(folder: Path, outcomes: dict[Cell, Outcome]) -> None:
    _, found = lines_of(start(folder, "shm", before=own_memory()))
    outcomes |= found
    assert [cell.phase for cell in found] == list(PHASES)
    for cell, outcome in found.items():
        assert outcome.seconds < LIMIT_S and not outcome.error, (cell, outcome)


@pytest.mark.parametrize("server", ["raylet", "gcs_server"])
def test_the_end_of_rays_server_is_an_error_and_leaves_nothing(
    folder: Path, outcomes: dict[Cell, Outcome], server: str
) -> None:
    process = start(folder, "wait", "0")
    state = state_of(process)
    began = time.monotonic()
    os.kill(state["servers"][server], signal.SIGKILL)
    _, text = process.communicate(timeout=WAIT_S)
    while left(state) and time.monotonic() - began < LIMIT_S:
        time.sleep(0.05)
    seconds = time.monotonic() - began
    outcomes[Cell("driver", server, "sample")] = Outcome(f"exit {process.returncode}", text, seconds)
    assert left(state) == {}
    assert seconds < LIMIT_S and process.returncode == 1, text
    assert f"ClusterLost: Ray's {server} on this machine" in text, text
