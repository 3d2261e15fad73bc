"""A driver whose other nodes fail, one in each phase of a step, with the component that stands there.

Arguments: the cluster's address, a folder, the component; the driver is on the first node. Prints JSON: what became of
a worker of another node that was stopped, then a line for each outcome.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trial import CONFIG, PHASES, Cell, Trial

from plugrl.config import load_config
from plugrl.config.schema import ClusterConfig
from plugrl.errors import PlugRLError
from plugrl.runtime import RaySession, WorkerGroup, wait_all

CALLS = "plugrl.testing.call_workers:CallWorker"
WAIT_S = 240.0


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def stopped(session: RaySession, there: int) -> dict[str, Any]:
    """Say what becomes of a worker of another node that is stopped, after it has talked with one of this node."""
    near = WorkerGroup(session, CALLS, name="near", devices=[0])
    far = WorkerGroup(session, CALLS, name="far", devices=[there, there])
    wait_all([near.ready, far.ready], WAIT_S)
    taken = near.execute("take", "far", 0, 2)
    wait_all([far.ranks(0).execute("give", "near", 0, [1, "two"]), taken], WAIT_S)
    # The first answer of the other node's watcher takes as long as its process to start.
    near.execute("sleep", 5.0).wait(WAIT_S)
    info = far.known_processes()[1]
    os.kill(info.pid, signal.SIGSTOP)
    began = time.monotonic()
    found = {"error": "", "text": "", "taken": taken.wait(1)}
    try:
        near.execute("sleep", 30.0).wait(WAIT_S)
    except PlugRLError as error:
        found |= {"error": type(error).__name__, "text": str(error)}
    found["seconds"] = time.monotonic() - began
    far.close()
    near.close()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{info.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return {**found, "left": Path(f"/proc/{info.pid}").exists()}


def main(address: str, folder: Path, component: str) -> None:
    (folder / "run.yaml").write_text(CONFIG)
    with RaySession(ClusterConfig(ray_address=address, start_timeout_s=WAIT_S), platform="cpu") as session:
        devices = [index * session.nodes[0].devices for index in range(len(session.nodes))]
        say(**stopped(session, devices[-1]))
        trial = Trial(session, load_config(folder / "run.yaml"), folder, {component: [*devices[1:], 0]})
        trial.launch()
        trial.step()
        for phase in PHASES:
            say(phase=phase, **asdict(trial.run(Cell(component, "node", phase))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
