"""What becomes of a worker that is there but does nothing, and that launching groups again and again leaves nothing."""

import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.errors import WorkerDied, WorkerFrozen
from plugrl.runtime import WorkerGroup
from plugrl.runtime.process import wait_gone

CALLS = "plugrl.testing.call_workers:CallWorker"
ECHO = "plugrl.testing.workers:EchoWorker"
WAIT = 30.0


@pytest.fixture
def limits(ray_session, monkeypatch):
    """Set bounds of the watch for a test."""

    def set_limits(liveness, unresponsive):
        changed = {"liveness_timeout_s": liveness, "unresponsive_timeout_s": unresponsive}
        monkeypatch.setattr(ray_session.watch, "_config", ray_session.config.model_copy(update=changed))

    return set_limits


def test_a_long_call_into_c_is_left_alone_and_a_stopped_process_is_an_error(ray_session, limits, caplog):
    group = WorkerGroup(ray_session, CALLS, name="frozen", devices=[0]).wait_ready(120)
    info = group.known_processes()[0]
    limits(0.5, 600.0)
    # The beat is 0.5 s; four without a sign of life count as silence.
    with caplog.at_level(logging.WARNING, logger="plugrl.runtime.liveness"):
        group.execute("hold_lock", 3.5).wait(WAIT)
    (warning,) = caplog.messages
    assert "worker group 'frozen' rank 0" in warning and "no sign of life" in warning and "in hold_lock()" in warning
    limits(0.5, 2.5)
    handle = group.execute("hold_lock", 6.0)
    with pytest.raises(WorkerFrozen) as caught:
        handle.wait(WAIT)
    assert (caught.value.state, caught.value.pid) == ("unresponsive", info.pid)
    assert "in hold_lock" in caught.value.remote_traceback and "unresponsive for" in str(caught.value)
    os.kill(info.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(WorkerFrozen) as caught:
        while time.monotonic() - began < 10:
            ray_session.check_alive()
            time.sleep(0.05)
    assert 0.5 <= time.monotonic() - began < 5.0
    assert (caught.value.group, caught.value.rank, caught.value.state) == ("frozen", 0, "stopped")
    assert "state T (stopped)" in str(caught.value) and f"kill -CONT {info.pid}" in str(caught.value)
    group.close()
    assert not wait_gone([(info.pid, info.started)], 5)


def counts(session):
    """What the driver holds that it could leave behind."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "files": len(list(session.run_directory.rglob("*"))),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_groups_that_are_launched_and_closed_a_hundred_times_leave_nothing(ray_session):
    pids, first, resident = [], {}, 0
    for turn in range(100):
        group = WorkerGroup(ray_session, ECHO, name="hundredfold", devices=[0]).wait_ready(120)
        assert group.generation == turn
        (info,) = group.known_processes().values()
        pids.append((info.pid, info.started))
        if turn % 5 == 4:
            os.kill(info.pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                group.execute("sleep", 60.0).wait(WAIT)
        else:
            group.execute("echo").wait(WAIT)
        group.close()
        if turn == 9:
            first, resident = counts(ray_session), resident_megabytes()
    assert not wait_gone(pids, 5)
    last = counts(ray_session)
    print(first, last, resident, resident_megabytes())
    assert last["threads"] <= first["threads"] + 2
    assert last["descriptors"] <= first["descriptors"] + 10 and last["files"] <= first["files"] + 2
    assert resident_megabytes() < resident + 40


def resident_megabytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
