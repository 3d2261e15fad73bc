"""A driver of the tests of broken plugins: its own plugins are whole, those of one node, or of one worker, are not."""

from __future__ import annotations

import json
import sys

from plugrl.config.schema import ClusterConfig
from plugrl.errors import PlugRLError
from plugrl.plugins import load_plugins
from plugrl.runtime import RaySession, WorkerGroup

ECHO = "plugrl.testing.workers:EchoWorker"
WAIT_S = 120


def outcome(group):
    """Wait for a group and return what stopped it, or the names of its nodes."""
    try:
        rows = group.wait_ready(WAIT_S).execute("place").wait(WAIT_S)
    except PlugRLError as error:
        return [type(error).__name__, str(error)]
    return ["ready", [row["node"] for row in rows]]


def main(address, broken):
    """Launch workers on both nodes, and one on the whole node that has the broken packages all the same."""
    load_plugins()
    with RaySession(ClusterConfig(ray_address=address, start_timeout_s=WAIT_S), platform="boards") as session:
        groups = {
            "whole node": WorkerGroup(session, ECHO, name="whole", devices=[0]),
            "both nodes": WorkerGroup(session, ECHO, name="both", devices=[0, 1]),
            "broken worker": WorkerGroup(session, ECHO, name="worker", devices=[0], env={"PYTHONPATH": broken}),
        }
        print(json.dumps({name: outcome(group) for name, group in groups.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
