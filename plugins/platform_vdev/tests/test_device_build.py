"""Building the device: once, whoever asks, and with a readable error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from plugrl_platform_vdev import build

_COMPILER = """#!/bin/sh
echo "$@" >> {log}
sleep 0.2
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes its calls and writes empty files."""
    script, log = tmp_path / "cxx", tmp_path / "calls"
    script.write_text(_COMPILER.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("VDEV_CACHE", str(tmp_path / "cache"))
    return log


def _build(path: Path) -> None:
    build.build_once(path)


def test_processes_that_start_together_build_once(log: Path) -> None:
    path = build.library_path()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_build, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    calls = log.read_text().splitlines()
    assert sum("-shared" in call for call in calls) == 1 and len(calls) == 3
    assert path.exists() and build.is_built()
    assert {item.name for item in path.parent.iterdir()} == {path.name, "lock"}


def test_build_that_was_killed_stands_in_nobodys_way(log: Path) -> None:
    path = build.library_path()
    context = multiprocessing.get_context("fork")
    killed = context.Process(target=_build, args=(path,))
    killed.start()
    deadline = time.monotonic() + 30
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join(10)
    assert not path.exists()
    build.build_once(path)
    assert {item.name for item in path.parent.iterdir()} == {path.name, "lock"}


def test_waiting_for_another_build_ends(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.library_path()
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(build, "BUILD_TIMEOUT_S", 0.3)
    with build.locked(path.parent / "lock"), pytest.raises(RuntimeError, match="has been building .* set VDEV_CACHE"):
        build.build_once(path)


def test_failed_build_shows_the_compilers_words(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cxx").write_text("#!/bin/sh\necho 'memory.cpp:3: no such thing' >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match="(?s)the build failed.*memory.cpp:3: no such thing"):
        build.build_once(build.library_path())


def test_without_a_compiler_the_error_says_what_to_do(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.compiler() is None
    with pytest.raises(RuntimeError, match="no C.. compiler .* CXX, .* VDEV_BUILD=python"):
        build.build_once(build.library_path())


def test_other_sources_are_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.library_path()
    assert before == build.library_path()
    (tmp_path / "other.cpp").write_text("int x;\n")
    monkeypatch.setattr(build, "_SOURCES", tmp_path)
    assert build.library_path() != before
