"""A driver of the tests of devices: it joins a cluster of two nodes (or starts a local Ray) and says what happened.

It is a process of its own, because a process has one platform and one Ray.
"""

from __future__ import annotations

import json
import os
import sys

import ray

from plugrl.config.schema import ClusterConfig
from plugrl.errors import PlugRLError
from plugrl.runtime import RaySession, WorkerGroup

ECHO = "plugrl.testing.workers:EchoWorker"
WAIT_S = 120


def refused(action):
    """Return the text of the error that the action raises, empty when it raises none."""
    try:
        action()
    except PlugRLError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def group(session, name, devices, **options):
    """Launch a group of small workers."""
    return WorkerGroup(session, ECHO, name=name, devices=devices, **options)


def places(group):
    """Return what each worker of a group says of its device."""
    return group.execute("place").wait(WAIT_S)


def shared(session):
    """Two groups whose workers share devices, and what is refused."""
    first, second = group(session, "first", [0, 1, 2]), group(session, "second", [1, 1])
    first.wait_ready(WAIT_S)
    second.wait_ready(WAIT_S)
    return {
        "first": places(first),
        "second": places(second),
        "missing": refused(lambda: group(session, "far", [5])),
        "own mask": refused(lambda: group(session, "own", [0], env={"BOARD_VISIBLE_DEVICES": "0"})),
    }


def exclusive(session):
    """Groups that own their devices, and a job of somebody else that holds all of one node."""
    owner = group(session, "owner", [0]).wait_ready(WAIT_S)
    found = {
        "again": refused(lambda: group(session, "again", [0])),
        "twice": refused(lambda: group(session, "twice", [1, 1])),
    }
    owner.close()

    @ray.remote(num_cpus=0, resources={"BOARD": 1})
    class Foreign:
        def ready(self):
            return True

    foreign = [Foreign.remote() for _ in range(session.device_count)]
    ray.get([actor.ready.remote() for actor in foreign], timeout=WAIT_S)
    found["taken"] = refused(lambda: group(session, "late", [0, 1]).wait_ready(3))
    return found


def main(address):
    """Run everything and print one JSON object."""
    config = ClusterConfig(ray_address=address or None, start_timeout_s=WAIT_S)
    found = {}
    with RaySession(config, platform="boards") as session:
        found["nodes"] = [(node.label, node.device_ids) for node in session.nodes]
        found.update(shared(session))
    if address:
        os.environ["BOARD_EXCLUSIVE"] = "1"
        with RaySession(config, platform="boards") as session:
            found.update(exclusive(session))
        os.environ["BOARD_RESOURCE"] = "PLANK"
        found["other"] = refused(RaySession(config, platform="boards").start)
    else:
        os.environ["BOARD_VISIBLE_DEVICES"] = ""
        found["empty"] = refused(RaySession(config, platform="boards").start)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
