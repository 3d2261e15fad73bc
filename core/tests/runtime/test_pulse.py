"""A worker's sign of life as others see it: running, stopped, in a call into C, dead; and cancelling by it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from plugrl.runtime.failure import RankInfo
from plugrl.runtime.observer import Observer, words_of
from plugrl.runtime.process import started_at
from plugrl.runtime.pulse import Interrupted, Pulse, PulseView

PERIOD_S = 0.05
SCRIPT = f"""
import ctypes, faulthandler, sys, time
from plugrl.runtime.host import STACKS_SIGNAL
from plugrl.runtime.pulse import Interrupted, Pulse, PulseView
faulthandler.register(STACKS_SIGNAL)
pulse = Pulse({PERIOD_S})
print(pulse.descriptor, flush=True)
for line in sys.stdin:
    number, seconds = line.split()
    began = time.monotonic()
    try:
        with pulse.running(int(number), "work()"):
            if int(number) % 2:
                time.sleep(float(seconds))
            else:
                ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))
        print("ended", flush=True)
    except Interrupted:
        print("interrupted", flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    """A process with a pulse that works for so many seconds: with an odd number in Python, with an even one in C."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("no anonymous files on this system")
    errors = tmp_path / "stderr"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        )
    descriptor = int(process.stdout.readline())
    info = RankInfo(
        group="g", rank=0, pid=process.pid, node_id="n", node_ip="127.0.0.1", started=started_at(process.pid),
        stderr_path=str(errors), pulse=descriptor,
    )  # fmt: skip

    def work(number, seconds):
        process.stdin.write(f"{number} {seconds}\n")
        process.stdin.flush()

    yield process, info, work
    process.kill()
    process.communicate(timeout=10)


def seen_as(observer, info, state, timeout=10.0):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = observer.look(info)
        if found.state == state:
            return found
        time.sleep(0.02)
    raise AssertionError(f"it is {observer.look(info)}, not {state}")


def test_a_stopped_process_is_told_from_a_dead_one_and_goes_on(worker):
    process, info, work = worker
    observer = Observer(PERIOD_S)
    assert observer.look(info).state == "alive"
    work(1, 0.3)
    os.kill(process.pid, signal.SIGSTOP)
    seen_as(observer, info, "stopped")
    time.sleep(0.3)
    assert 0.2 < observer.look(info).for_s < 5
    assert "T (stopped)" in words_of(info, stacks=True).kernel and words_of(info, stacks=True).stacks == ""
    os.kill(process.pid, signal.SIGCONT)
    seen_as(observer, info, "alive")
    assert process.stdout.readline() == "ended\n"
    os.kill(process.pid, signal.SIGKILL)
    seen_as(observer, info, "dead")
    observer.forget(info)


def test_a_call_into_c_is_unresponsive_and_its_stack_says_where(worker):
    _, info, work = worker
    observer = Observer(PERIOD_S)
    observer.look(info)
    work(2, 1.5)
    found = seen_as(observer, info, "unresponsive")
    assert found.phase == "work()" and found.for_s > 0.2
    assert "line 16" in words_of(info, stacks=True).stacks
    assert seen_as(observer, info, "alive").phase == "idle"


def test_nothing_is_suspected_of_the_time_in_which_nobody_looked(worker, monkeypatch):
    process, info, _ = worker
    observer = Observer(PERIOD_S)
    os.kill(process.pid, signal.SIGSTOP)
    seen_as(observer, info, "stopped")
    monkeypatch.setattr("plugrl.runtime.observer._LOOK_GAP_S", 0.1)
    time.sleep(0.3)
    assert observer.look(info).for_s < 0.1


def test_a_cancelled_call_is_interrupted_once_and_an_earlier_request_stops_a_later_call(worker):
    process, info, work = worker
    observer = Observer(PERIOD_S)
    work(3, 30)
    seen = observer.look(info)
    deadline = time.monotonic() + 10
    while seen.phase != "work()" and time.monotonic() < deadline:
        seen = observer.look(info)
    began = time.monotonic()
    observer.cancel(info, 3)
    observer.cancel(info, 5)
    work(7, 0)
    work(5, 30)
    work(3 + 32, 0)
    assert [process.stdout.readline() for _ in range(4)] == ["interrupted\n", "ended\n", "interrupted\n", "ended\n"]
    assert time.monotonic() - began < 5


def test_a_pulse_of_this_process_leaves_its_thread_when_it_is_stopped():
    before = signal.getsignal(signal.SIGUSR2)
    pulse = Pulse(0.01)
    try:
        with pulse.running(1, "x()"):
            pulse._interrupt(signal.SIGUSR2, None)
        observer, own = Observer(0.01), os.getpid()
        info = RankInfo(
            group="g", rank=0, pid=own, node_id="n", node_ip="", started=started_at(own), pulse=pulse.descriptor
        )
        observer.cancel(info, 9)
        with pytest.raises(Interrupted), pulse.running(9, "x()"):
            raise AssertionError("a cancelled call is not begun")
        observer.forget(info)
    finally:
        pulse.stop()
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_that_comes_to_nothing_is_sent_again_and_a_method_is_interrupted_once(monkeypatch):
    """One that arrives just before the main thread sleeps does not end the sleep."""
    before = signal.getsignal(signal.SIGUSR2)
    sent, send = [], signal.pthread_kill

    def lossy(thread, number):
        sent.append(number)
        if len(sent) > 2:
            send(thread, number)

    monkeypatch.setattr("plugrl.runtime.pulse.signal.pthread_kill", lossy)
    pulse = Pulse(0.02)
    try:
        view = PulseView(os.getpid(), pulse.descriptor)
        began = time.monotonic()
        with pytest.raises(Interrupted), pulse.running(9, "x()"):
            view.cancel(9)
            try:
                time.sleep(20)
            finally:
                told = len(sent)
                time.sleep(0.2)
        assert told == len(sent) == 3 and time.monotonic() - began < 10
        view.close()
    finally:
        pulse.stop()
        signal.signal(signal.SIGUSR2, before)
