"""Several Ray nodes on this machine, each with its own variables and resources, for tests of clusters.

They are children of a small process, which this module is when it runs as ``__main__``: whoever dies first,
nothing stays behind. Everything listens on the loopback interface alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

STORE_BYTES = 80 * 2**20
START_S = 180.0
STOP_S = 30.0


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A node to start: its name in Ray, the variables of its processes and the resources that Ray is told of."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def ray_nodes(nodes: Sequence[RayNode]) -> Iterator[str]:
    """Start a cluster of these nodes, the first one its head, and yield its address; the nodes end with the block.

    Raises RuntimeError, with what the nodes printed, when they do not start within ``START_S`` seconds.
    """
    # Ray keeps its sockets below this folder, and their paths may have some hundred characters at most.
    folder = tempfile.mkdtemp(prefix="rn")
    environment = {
        **os.environ,
        "RAY_TMPDIR": folder,
        # Written for other systems, but what keeps Ray on the loopback interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Ray gives a node 30 s, which a machine that is busy with other tests may exceed.
        "RAY_raylet_start_wait_time_s": str(int(START_S)),
    }
    log = os.path.join(folder, "nodes.log")
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps([asdict(node) for node in nodes])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        yield _address(process, log)
    finally:
        try:
            process.communicate(timeout=STOP_S)  # closes its input, which it takes as the word to end
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=STOP_S)
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a folder that processes which are just ending may still write to."""
    deadline = time.monotonic() + STOP_S
    while os.path.exists(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


def _address(process: subprocess.Popen[str], log: str) -> str:
    assert process.stdout is not None
    late = threading.Timer(START_S, process.kill)
    late.start()
    line = process.stdout.readline()
    late.cancel()
    if not line:
        with open(log) as file:
            raise RuntimeError(f"The Ray nodes did not start within {START_S:g} s:\n{file.read()}")
    return str(json.loads(line))


def main(text: str) -> None:
    """Start the nodes that ``text`` lists as JSON, print the address, and end them when the input closes."""
    from plugrl.runtime import local_ray

    with local_ray.lean_cluster():
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        for number, node in enumerate(json.loads(text)):
            # Only the head may be given settings of the whole cluster.
            common: dict[str, Any] = {"_system_config": dict(local_ray.SYSTEM_CONFIG)} if number == 0 else {}
            resources = dict(node["resources"])
            cluster.add_node(
                node_ip_address=local_ray.LOOPBACK,
                node_name=node["name"],
                env_vars=dict(node["env"]),
                num_cpus=4,
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
                **common,
            )
    print(json.dumps(cluster.address), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
