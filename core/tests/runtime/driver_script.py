"""A driver that tests start and end by force: it starts a session and a worker, says what runs, and waits."""

import json
import sys
from pathlib import Path

import torch

from plugrl.config.schema import ClusterConfig
from plugrl.runtime import RaySession, WorkerGroup
from plugrl.runtime.channel import Channel

LISTEN = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def descendants(pid):
    """Return the pids of all processes below ``pid``."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def open_listeners(pids):
    """Return ``(pid, address)`` of listening TCP sockets that are bound to more than loopback."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                addresses[f"socket:[{fields[9]}]"] = fields[1].split(":")[0]
    found = []
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                address = addresses.get(str(descriptor.readlink()))
            except OSError:
                continue
            if address is not None and address not in LOOPBACK:
                found.append((pid, address))
    return found


def main(pid, devices):
    with RaySession(ClusterConfig(start_timeout_s=200), platform="cpu") as session:
        group = WorkerGroup(session, "plugrl.testing.workers:CollectiveWorker", name="echo", devices=devices)
        group.wait_ready()
        assert group.execute("sum_of_ranks").wait(30) == [sum(range(1, len(devices) + 1))] * len(devices)
        for row in group.execute("environment", "RANK", "WORLD_SIZE", "MASTER_PORT").wait(30):
            assert row["env"] == {"RANK": None, "WORLD_SIZE": None, "MASTER_PORT": None}, row
        if "interrupt" in sys.argv:
            # Its process is one more that must end, with what lies in the channel.
            Channel.create(session, "items").put(torch.zeros(2**20))
        pids = descendants(pid)
        state = {
            "pids": pids,
            "workers": [info.pid for info in group.known_processes().values()],
            "listeners": open_listeners([pid, *pids]),
            "run_directory": str(session.run_directory),
        }
        print(json.dumps(state), flush=True)
        if "raise" in sys.argv:
            raise RuntimeError("the driver fails")
        if len(devices) == 1:
            group.execute("sleep", 600.0).wait(600)
        group.execute("sum_of_ranks", ranks=[0]).wait(600)


if __name__ == "__main__":
    import os
    import signal

    class Terminated(BaseException):
        """What the driver's handler raises."""

    def terminate(*_):
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        main(os.getpid(), [0, 1] if "interrupt" in sys.argv else [0])
    except Terminated:
        sys.exit(77)
