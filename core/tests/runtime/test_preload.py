"""Workers as forks of a process that has imported for them: what a fork gets, and when there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from plugrl.runtime import process
from plugrl.runtime.preload import PRELOAD, PreloadedProcess, modules_of
from plugrl.runtime.preload.start import worker as start

DEADLINE_S = 60.0
LOADED = "acme_preloaded"

WORKER = """
import json, os, sys
from plugrl.runtime import process
own = process.environment_of(os.getpid())
report = {
    "loaded": [name for name in ("acme_preloaded", "acme_broken") if name in sys.modules],
    "arguments": sys.argv[1:], "folder": os.getcwd(), "own": os.environ.get("ACME_OWN"), "begun": own.get("ACME_OWN"),
    "parent": process.parent(), "pid": os.getpid(), "session": os.getsid(0), "path": sys.path[0],
    "address": "_PLUGRL_PRELOADED" in os.environ, "main": __name__, "file": __file__,
}
print("worker says", flush=True)
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(report, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""

Start = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / f"{LOADED}.py").write_text("")
    (tmp_path / "acme_broken.py").write_text("raise OSError('libacme.so.1')")
    (tmp_path / "acme_worker.py").write_text(WORKER)
    return tmp_path


@pytest.fixture
def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def preloaded(folder: Path, variables: dict[str, str]) -> Iterator[PreloadedProcess]:
    found = PreloadedProcess(folder, variables, ["acme_broken", LOADED], common=("json",))
    yield found
    found.stop()


@pytest.fixture
def begin(folder: Path, variables: dict[str, str]) -> Start:
    """Return what starts a worker as Ray's server does, and reads what it says."""

    def begin(address: Path | str, context: Mapping[str, Any] | None = None, **env: str) -> dict[str, Any]:
        answer = folder / "answer.json"
        answer.unlink(missing_ok=True)
        command = [sys.executable, start.__file__, str(folder / "acme_worker.py"), str(answer), "--more=1",
                   "--language=PYTHON", f"--serialized-runtime-env-context={json.dumps(context or {})}"]  # fmt: skip
        own = {start.ADDRESS: str(address), start.RAYS_OWN: str(folder / "rays_own.py")}
        done = subprocess.run(command, env={**variables, **env, **own}, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        _wait_for(answer)
        return dict(json.loads(answer.read_text()))

    return begin


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.01)


def test_a_fork_is_the_worker_with_everything_imported(
    preloaded: PreloadedProcess, begin: Start, folder: Path
) -> None:
    context = {"env_vars": {"ACME_OWN": "${ACME_PART}2${ACME_NONE}"}, "py_executable": sys.executable}
    found = begin(preloaded.address, context, ACME_PART="4")
    assert found["loaded"] == [LOADED], "what cannot be imported is left to the worker"
    assert found["own"] == found["begun"] == "42"
    assert found["arguments"] == [str(folder / "answer.json"), "--more=1"] and not found["address"]
    assert found["folder"] == os.getcwd() and found["path"] == str(folder)
    assert found["parent"] == os.getpid(), "the one that asked"
    assert found["session"] == found["pid"], "a session of its own, as nobody's Ctrl-C is meant for it"
    assert (found["main"], found["file"]) == ("__main__", str(folder / "acme_worker.py"))
    second = begin(preloaded.address)
    assert second["pid"] != found["pid"] and second["own"] is None, "nothing of another worker"
    assert "acme_broken is not preloaded: OSError('libacme.so.1')" in preloaded.log.read_text()


@pytest.mark.parametrize("name", ["PYTHONOPTIMIZE", "OMP_NUM_THREADS", "LD_BIND_NOW", "GLIBC_TUNABLES", "HF_HOME"])
def test_who_needs_another_start_gets_one(preloaded: PreloadedProcess, begin: Start, name: str) -> None:
    found = begin(preloaded.address, {"env_vars": {name: "2", "ACME_OWN": "1"}})
    assert found["loaded"] == [] and found["own"] == found["begun"] == "1"
    assert f"no fork: {name}" in preloaded.log.read_text()


def test_without_the_process_a_worker_starts_by_itself(
    preloaded: PreloadedProcess, begin: Start, folder: Path
) -> None:
    assert begin("")["loaded"] == []
    os.kill(preloaded.pid, signal.SIGKILL)
    preloaded.stop()
    assert begin(preloaded.address)["loaded"] == []


def test_ray_does_what_is_more_than_variables(folder: Path, variables: dict[str, str], begin: Start) -> None:
    (folder / "rays_own.py").write_text(
        f"import json, sys; json.dump({{'rays': sys.argv[1:]}}, open({str(folder / 'answer.json')!r}, 'w'))"
    )
    for context in ({"py_executable": "/opt/python"}, {"command_prefix": ["numactl"]}, {"something_new": 1}):
        arguments = begin("", context)["rays"]
        assert arguments[-2:] == ["--language=PYTHON", f"--serialized-runtime-env-context={json.dumps(context)}"]


@pytest.mark.parametrize(("sdk", "module", "said"), [(LOADED, LOADED, f"{LOADED} was loaded along"),
                                                     ("", "ray", "ray was loaded along"),
                                                     ("", "acme_thread", "there are 2 threads")])  # fmt: skip
def test_a_process_that_must_not_be_forked_is_not(
    folder: Path,
    variables: dict[str, str],
    begin: Start,
    sdk: str,
    module: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    (folder / "ray.py").write_text("")
    (folder / "acme_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    found = PreloadedProcess(folder, variables, [LOADED, module], sdk, common=())
    try:
        assert begin(found.address)["loaded"] == []
        assert f"Workers start by themselves: {said}." in found.log.read_text()
    finally:
        found.stop()
    assert f"Workers start by themselves: {said}." in caplog.text


def test_who_has_gone_in_the_meantime_gets_no_fork(
    preloaded: PreloadedProcess, begin: Start, folder: Path, variables: dict[str, str]
) -> None:
    early = {name: value for name, value in variables.items() if start.EARLY.match(name)}
    command = [str(folder / "acme_worker.py"), str(folder / "late.json")]
    os.kill(preloaded.pid, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(preloaded.address))
        request = {"arguments": command, "env": variables, "cwd": "/", "early": early, "server": 1}
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    os.kill(preloaded.pid, signal.SIGCONT)
    assert begin(preloaded.address)["loaded"] == [LOADED], "it goes on"
    assert "no fork" not in preloaded.log.read_text() and not (folder / "late.json").exists()


def test_it_ends_with_the_driver(folder: Path, variables: dict[str, str]) -> None:
    program = (
        "import os, pathlib; from plugrl.runtime.preload import PreloadedProcess\n"
        f"found = PreloadedProcess(pathlib.Path({str(folder)!r}), {{}}, common=())\n"
        "print(found.pid, flush=True); os._exit(1)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    assert not process.wait_gone([(pid, process.started_at(pid))], 20.0), "it outlived its driver"


def test_modules_of_targets_are_those_installed() -> None:
    assert modules_of(["json:dumps", "json:loads", None, "acme_nowhere.engine:Engine", "os:path"]) == ["json", "os"]


def test_what_every_worker_imports_leaves_ray_and_devices_alone() -> None:
    pytest.importorskip("torch")
    code = f"from plugrl.runtime.preload import server; print(repr(server.preload({PRELOAD!r}, '')))"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as workers have
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, env=env)
    assert (done.stdout, done.stderr) == ("''\n", "")


def test_workers_of_a_session_are_forks_and_tell_their_own_variables(ray_session: Any) -> None:
    from plugrl.runtime import WorkerGroup

    group = WorkerGroup(ray_session, "plugrl.testing.workers:EchoWorker", name="forked", devices=[0]).wait_ready()
    try:
        pid = group.describe_rank(0).pid
        assert pid in process.children(ray_session._preloaded.pid)
    finally:
        group.close()
    assert not process.is_alive(pid)
