"""A driver that something happens to in a phase of a step: see test_driver.

Arguments: a folder, then either the phase in which a worker sends this process a signal, and its number; or `all`, for
every fault that a driver survives, each in every phase; or `shm`, for a step while /dev/shm, which must be its own, is
full; or `wait`, for nothing. Prints JSON: first what runs, then a line for each outcome.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from injection import limits_kept, strike
from trial import CONFIG, METHODS, PHASES, Trial, descendants

from plugrl.config import load_config
from plugrl.config.schema import ClusterConfig
from plugrl.runtime import RaySession, Worker, WorkerGroup
from plugrl.runtime.channel import Channel

FAULTS = ("exception", "memory", "full", "closed", "freeze")
LARGE_BYTES = 2**23
FREEZE_S = 6.0
INTERRUPTED = 130
LISTEN = "0A"


class Listener(Worker):
    """Waits for a channel, as a consumer that is idle does."""

    process_group = False

    def listen(self, name: str) -> Any:
        """Return the next item."""
        return self.channel(name).get(timeout=600)


def state_of(session: RaySession) -> dict[str, Any]:
    """Return what must be gone after this process: others, ports that they listen at, files in memory and on disk.

    servers: which of the processes are Ray's servers.
    """
    below = descendants(os.getpid())
    pids = [os.getpid(), *below]
    links = {link for pid in pids for link in _links(pid)}
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTEN and f"socket:[{fields[9]}]" in links:
            ports.append(fields[1])
    return {
        "pids": list(below),
        "servers": {
            Path(command.partition(" ")[0]).name: pid
            for pid, command in below.items()
            if command.partition(" ")[0].endswith(("/raylet", "/gcs_server"))
        },
        "ports": ports,
        "shared_memory": sorted(link for link in links if link.startswith("/dev/shm/") and "(deleted)" not in link),
        "run_directory": str(session.run_directory),
    }


def _links(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.append(os.readlink(descriptor))
        except OSError:
            continue
    return found


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Driver:
    """The step of a trial, with faults that come while this process waits for a worker."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def signalled(self, phase: str, number: int) -> Callable[[], None]:
        """Return what runs a phase in which a worker sends this process a signal."""
        trial = self.trial
        performing = next((component for at, component in METHODS if at == phase), None)
        if performing is None:
            return lambda: os.kill(os.getpid(), number)
        order = {
            "group": f"f-{performing}", "rank": 0, "method": METHODS[phase, performing], "fault": "signal",
            "pid": os.getpid(), "number": number,
        }  # fmt: skip
        trial.order.write_text(json.dumps(order))
        return trial.phases()[phase]

    def outcomes(self, faults: Iterable[str]) -> None:
        """Say what comes of each fault in each phase."""
        for fault in faults:
            for phase in PHASES:
                self.outcome(fault, phase)

    def outcome(self, fault: str, phase: str) -> None:
        """Say what comes of a fault that this process survives, and run the next step."""
        self.trial.before(phase)
        error: BaseException | None = None
        act = getattr(self, f"_{fault}", None) or self._in_handler(fault)
        run = act(phase)
        began = time.monotonic()
        try:
            run()
        except Exception as caught:
            # Ray lets no error of a signal handler through as it is.
            error = caught.__cause__ if isinstance(caught, SystemError) and caught.__cause__ else caught
        found = self.trial.recovered(error, time.monotonic() - began)
        say(fault=fault, phase=phase, **asdict(found))

    def _in_handler(self, fault: str) -> Callable[[str], Callable[[], None]]:
        def handler(number: int, frame: FrameType | None) -> None:
            with limits_kept():
                strike({"fault": fault}, self.trial.session)

        signal.signal(signal.SIGUSR1, handler)
        return lambda phase: self.signalled(phase, signal.SIGUSR1)

    def _full(self, phase: str) -> Callable[[], None]:
        def run() -> None:
            with limits_kept():
                strike({"fault": "full"}, None)
                self.trial.phases()[phase]()

        return run

    def _shm(self, phase: str) -> Callable[[], None]:
        def run() -> None:
            self.trial.phases()[phase]()
            self.trial.groups["env"].execute("echo", bytes(LARGE_BYTES)).wait(60)

        return run

    def _closed(self, phase: str) -> Callable[[], None]:
        return self._loses_channel("closed", phase)

    def _orphaned(self, phase: str) -> Callable[[], None]:
        return self._loses_channel("orphaned", phase)

    def _loses_channel(self, fault: str, phase: str) -> Callable[[], None]:
        waiting: list[str] = []
        lost = self.trial.channel_to_lose(fault, lambda: bool(waiting))
        channel = Channel.connect(self.trial.session, lost.name)

        def run() -> None:
            with lost:
                self.trial.phases()[phase]()
                waiting.append(phase)
                channel.get(timeout=60)

        return run

    def _freeze(self, phase: str) -> Callable[[], None]:
        run = self.signalled(phase, signal.SIGSTOP)
        script = f'while [ -e "$1" ]; do sleep 0.1; done; sleep {FREEZE_S}; kill -CONT {os.getpid()}'
        subprocess.Popen(["/bin/sh", "-c", script, "awake", str(self.trial.order)])
        return run


def fill(folder: Path) -> None:
    """Let no more fit into a file system."""
    with (folder / "filler").open("wb", buffering=0) as file:
        size = 2**20
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


def main(folder: Path, what: str, number: int = 0) -> None:
    (folder / "run.yaml").write_text(CONFIG)
    with RaySession(ClusterConfig(start_timeout_s=240), platform="cpu") as session:
        trial = Trial(session, load_config(folder / "run.yaml"), folder)
        trial.launch()
        # Somebody waits at a channel, and a large item lies in another one.
        idle, full = Channel.create(session, "idle"), Channel.create(session, "full")
        full.put(torch.zeros(2**22))
        waits = WorkerGroup(session, Listener, name="listener", devices=[0]).wait_ready().execute("listen", "idle")
        trial.step()
        say(**state_of(session))
        driver = Driver(trial)
        if what == "all":
            driver.outcomes(FAULTS)
        elif what == "wait":
            trial.wait_for_it(60)
        elif what == "shm":
            fill(Path("/dev/shm"))
            driver.outcomes(["shm"])
        else:
            trial.before(what)
            driver.signalled(what, number)()
            trial.wait_for_it(60)  # the signal came, or is about to
        idle.put("the end")
        assert waits.wait(60) == ["the end"] and full.get().numel() == 2**22
        if what == "all":
            driver.outcomes(["orphaned"])


if __name__ == "__main__":
    # Whoever runs in the background of a shell without job control has inherited that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
