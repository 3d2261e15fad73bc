"""Running a level: every end that a check can take is the result of that check, and nothing outlives its level."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plugrl.testing.kit.process import Job
from plugrl.testing.kit.results import CheckResult
from plugrl.testing.kit.runner import LevelRun, run_level

HEAD = """
import os, signal, subprocess, sys, time
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped, check, expect, expect_equal, expect_raises
"""


@pytest.fixture
def level(tmp_path: Path):
    """Return a function that runs checks, given as source, as the level L0 without a plugin."""

    def run(source: str, **job: object) -> LevelRun:
        (tmp_path / "made_checks.py").write_text(HEAD + source)
        env = {"PYTHONPATH": str(tmp_path)}
        names = tuple(line.split('"')[1] for line in source.splitlines() if line.startswith("@check"))
        return run_level(
            Job(level="L0", platform="", plugin="", modules=("made_checks",), only=names, **job), env=env
        )

    return run


def by_id(run: LevelRun) -> dict[str, CheckResult]:
    return {result.id: result for result in run.results}


ENDS = '''
@check("L0.passes")
def passes(kit):
    """It passes.

    What stands here is for readers of the source.
    """
    return "all is well"

@check("L0.fails", fix="mend it")
def fails(kit):
    """It fails."""
    expect_equal(1, 2, "the number")

@check("L0.raises", fix="mend it too")
def raises(kit):
    raise OSError("libacme.so.1: cannot open")

@check("L0.skips")
def skips(kit):
    raise CheckSkipped("no second board")

@check("L0.accepts")
def accepts(kit):
    expect_raises(ValueError, lambda: 7, "the index 7")

@check("L0.raises_another")
def another(kit):
    expect_raises(ValueError, lambda: [][1], "the index 7")

@check("L0.exits")
def exits(kit):
    sys.exit(0)

@check("L0.last")
def last(kit):
    print("to nobody")
'''


def test_every_end_of_a_check_is_its_result(level) -> None:
    run = level(ENDS)
    found = by_id(run)
    assert [result.id for result in run.results] == [line.split('"')[1] for line in ENDS.splitlines() if "@ch" in line]
    statuses = {name.partition(".")[2]: result.status for name, result in found.items()}
    assert statuses == {"passes": "supported", "fails": "failed", "raises": "failed", "skips": "skipped",
                        "accepts": "failed", "raises_another": "failed", "exits": "failed",
                        "last": "supported"}  # fmt: skip
    assert (found["L0.passes"].requirement, found["L0.passes"].detail) == ("It passes.", "all is well")
    assert found["L0.fails"].detail == "the number is wrong: got 1, expected 2" and found["L0.fails"].fix == "mend it"
    raised = found["L0.raises"].detail
    assert raised.startswith("OSError: libacme.so.1") and "made_checks.py" in raised
    assert found["L0.skips"].detail == "no second board" and not found["L0.passes"].fix
    assert "is accepted (it returned 7), expected ValueError" in found["L0.accepts"].detail
    assert "raises IndexError" in found["L0.raises_another"].detail
    assert not run.blocks


CRASHES = '''
@check("L0.first")
def first(kit): pass

@check("L0.aborts")
def aborts(kit):
    print("double free", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

@check("L0.leaves")
def leaves(kit):
    os._exit(3)

@check("L0.last")
def last(kit): pass
'''


def test_a_crash_names_its_check_and_the_others_go_on(level) -> None:
    found = by_id(level(CRASHES))
    assert found["L0.first"].status == found["L0.last"].status == "supported"
    assert "SIGSEGV" in found["L0.aborts"].detail and "double free" in found["L0.aborts"].detail
    assert "exit code 3" in found["L0.leaves"].detail and len(found) == 4


HANGS = '''
@check("L0.hangs", deadline_s=0.5)
def hangs(kit):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    open({path!r}, "w").write(str(child.pid))
    time.sleep(300)

@check("L0.last")
def last(kit): pass
'''


def test_a_hang_ends_at_its_deadline_with_all_its_processes(level, tmp_path: Path) -> None:
    path, began = tmp_path / "pid", time.monotonic()
    found = by_id(level(HANGS.format(path=str(path))))
    assert time.monotonic() - began < 30
    assert "no answer within 0.5 s" in found["L0.hangs"].detail and found["L0.last"].status == "supported"
    wait_for(lambda: not is_running(int(path.read_text())))


GATE = '''
@check("L0.gate", gate=True)
def gate(kit):
    {body}

@check("L0.behind")
def behind(kit): pass
'''


@pytest.mark.parametrize("body", ["expect(False, 'closed')", "os._exit(1)"])
def test_behind_a_gate_that_fails_everything_is_blocked(level, body: str) -> None:
    run = level(GATE.format(body=body))
    found = by_id(run)
    assert (found["L0.gate"].status, found["L0.behind"].status) == ("failed", "blocked")
    assert found["L0.behind"].detail == run.blocks == "L0.gate failed"


def test_an_expected_failure_blocks_nothing_and_one_that_passes_is_reported(level) -> None:
    run = level(GATE.format(body="os._exit(1)"), xfail={"L0.gate": "driver 3 (issue 7)", "L0.behind": "issue 8"})
    found = by_id(run)
    assert (found["L0.gate"].status, found["L0.gate"].note) == ("xfail", "driver 3 (issue 7)")
    assert found["L0.behind"].status == "supported" and "take it off the list" in found["L0.behind"].note


def test_a_process_that_cannot_begin_blocks_what_follows(level) -> None:
    run = level("import no_such_library\n")
    (result,) = run.results
    assert result.status == "failed" and "no_such_library" in result.detail and run.blocks == "L0.process failed"


def test_a_level_that_crashes_again_and_again_is_given_up(level) -> None:
    source = "".join(f'@check("L0.c{number}")\ndef c{number}(kit): os._exit(1)\n\n' for number in range(8))
    statuses = [result.status for result in level(source).results]
    assert statuses == ["failed"] * 6 + ["blocked"] * 2


ORPHAN = """
import sys
from plugrl.testing.kit.process import Job
from plugrl.testing.kit.runner import run_level
run_level(Job(level="L0", platform="", plugin="", modules=("made_checks",), only=("L0.hangs",)))
"""


def test_a_level_does_not_outlive_its_runner(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    (tmp_path / "made_checks.py").write_text(HEAD + HANGS.format(path=str(path)).replace("deadline_s=0.5", ""))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    runner = subprocess.Popen([sys.executable, "-c", ORPHAN], env=env)
    wait_for(lambda: path.exists() and path.read_text())
    runner.kill()
    runner.wait()
    wait_for(lambda: not is_running(int(path.read_text())))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it took more than 20 s"
        time.sleep(0.05)
