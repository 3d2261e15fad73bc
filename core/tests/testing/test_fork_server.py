"""Forks of a server are what interpreters would be: exit code, output, environment, folder, descriptors, and an end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugrl.testing.fork_server import ForkedProcess, ForkServer, ForkServerError

DEADLINE_S = 60


def gone(pid: int) -> bool:
    """Whether a process of another parent ends before long; one that nobody has fetched yet has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A server that has imported what no interpreter starts with, and left out what is not installed."""
    with ForkServer("wave", "acme_that_is_missing") as server:
        yield server


ENDS = ["print('said')", "import sys; sys.exit(3)", "import sys; sys.exit('a reason')", "raise ValueError('wrong')",
        "import os; os.kill(os.getpid(), 9)", "import atexit; atexit.register(print, 'at the end')",
        "import threading; threading.Timer(0.2, print, ['from a thread']).start()"]  # fmt: skip


@pytest.mark.parametrize("code", ENDS)
def test_a_fork_ends_as_an_interpreter_does(server: ForkServer, code: str) -> None:
    expected = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    found = server.run("-c", code, timeout=DEADLINE_S)
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout), found.stderr
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_it_begins_with_what_was_imported_and_with_its_own_surroundings(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "paths").mkdir()
    module = "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:])"
    (tmp_path / "paths" / "acme_module.py").write_text(module)
    code = ("import json, os, sys, tempfile, acme_module\nopen_ = sorted(map(int, os.listdir('/proc/self/fd')))[:-1]\n"
            "print(json.dumps([sys.argv, os.getcwd(), 'wave' in sys.modules, dict(os.environ), tempfile.gettempdir(), "
            "open_]))")  # fmt: skip
    env = {"PYTHONPATH": str(tmp_path / "paths"), "ACME": "1", "TMPDIR": str(tmp_path)}
    done = server.run("-c", code, "an argument", cwd=tmp_path, env=env, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    argv, folder, imported, environment, temporary, descriptors = json.loads(done.stdout)
    assert (argv, folder, imported, environment) == (["-c", "an argument"], str(tmp_path), True, env)
    assert temporary == str(tmp_path) and descriptors == [0, 1, 2], "nothing of the server is left open"
    done = server.run("-m", "acme_module", "--flag", cwd=tmp_path, env=env, timeout=DEADLINE_S)
    assert done.stdout == "['--flag']\n", done.stderr


def test_descriptors_pass_under_their_numbers_and_standard_input_is_a_pipe(server: ForkServer) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as answers, tempfile.TemporaryFile() as log:
        code = f"import os, sys; os.write({writing}, sys.stdin.buffer.read() + b' %d' % (os.getsid(0) == os.getpid()))"
        process = server.start("-c", code, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=(writing,),
                               start_new_session=True)  # fmt: skip
        os.close(writing)
        assert process.stdin is not None
        with process.stdin as stream:
            stream.write(b"a job")
        assert process.wait(DEADLINE_S) == 0 and answers.read() == "a job 1"


def test_it_can_be_waited_for_and_killed_and_none_outlives_the_server() -> None:
    sleep = "import time; time.sleep(600)"
    with ForkServer() as server, tempfile.TemporaryFile() as log:
        process = server.start("-c", sleep, stdout=log, stderr=log)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        assert process.poll() is None
        process.kill()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL == process.poll()
        with pytest.raises(subprocess.TimeoutExpired):
            server.run("-c", sleep, timeout=0.2)
        left = server.start("-c", sleep, stdout=log, stderr=log)
    assert gone(left.pid), "a fork outlives its server"
    assert left.wait(DEADLINE_S) == -signal.SIGKILL


def test_who_ends_while_it_is_killed_is_killed() -> None:
    """The server takes the process away a moment before its answer is here."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, there = socket.socketpair()
    with there:
        fork = ForkedProcess(ended.pid, here)
        fork.kill()
        there.send(b"0")
    assert fork.wait(5) == 0


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_broken.py").write_text("raise OSError('libacme.so.1')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ForkServerError, match="OSError: libacme.so.1"), ForkServer("acme_broken") as server:
        server.run("-c", "pass", timeout=DEADLINE_S)


def test_a_server_that_was_killed_takes_its_forks_along_and_is_started_again() -> None:
    with ForkServer() as server, tempfile.TemporaryFile() as log:
        process = server.start("-c", "import time; time.sleep(600)", stdout=log, stderr=log)
        assert server._server is not None
        server._server.kill()
        server._server.wait(DEADLINE_S)
        assert server.run("-c", "print(1)", timeout=DEADLINE_S).stdout == "1\n"
        assert process.wait(DEADLINE_S) == -signal.SIGKILL and gone(process.pid)
