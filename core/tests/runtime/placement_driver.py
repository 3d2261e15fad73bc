"""Starts workers in two node groups, of a cluster of two nodes or of one local node, and prints what they find.

See test_node_groups.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from plugrl.config.schema import ClusterConfig
from plugrl.runtime import RaySession, Worker, WorkerGroup
from plugrl.runtime.placement import FlexiblePlacementStrategy, NodePlacementStrategy, PackedPlacementStrategy

NAMES = ("ONE", "TWO", "THREE", "FOUR", "CPATH", "ONLY_LEFT", "ONLY_RIGHT", "RANK", "WORLD_SIZE")


class Look(Worker):
    """Says what its process is."""

    process_group = False

    def look(self) -> dict[str, Any]:
        """Return variables, interpreter, node and place."""
        assert self.context.placement is not None
        return {
            "env": {name: os.environ[name] for name in NAMES if name in os.environ},
            "prefix": sys.prefix,
            "node": self.context.node_name.split()[0],
            "node_rank": self.context.placement.node_rank,
            "group": self.context.placement.node_group,
            "device": self.context.device_index,
        }


def config(address: str, interpreter: str) -> ClusterConfig:
    """Two groups, of one node each where a cluster is joined; the left one has an interpreter of its own."""
    second = 1 if address else 0
    left = [{"THREE": "group"}, {"FOUR": "group"}, {"CPATH": "/group"}, {"ONLY_LEFT": "1"}]
    groups = [
        {"label": "left", "node_ranks": 0,
         "env_configs": [{"env_vars": left, "python_interpreter_path": interpreter}]},
        {"label": "right", "node_ranks": second,
         "env_configs": [{"node_ranks": second, "env_vars": [{"ONLY_RIGHT": "1"}]}]},
    ]  # fmt: skip
    return ClusterConfig.model_validate(
        {"ray_address": address or None, "node_groups": groups, "num_nodes": 1 + second, "start_timeout_s": 240}
    )


def main(address: str, interpreter: str) -> None:
    """Print as JSON what the workers say."""
    answer: dict[str, Any] = {}
    with RaySession(config(address, interpreter), platform="cpu") as session:
        answer["nodes"] = [node.name.split()[0] for node in session.layout.nodes]
        os.environ["TWO"] = "driver"  # after the node was started, and after the session was
        groups = {
            "left": WorkerGroup(
                session, Look, name="left", env={"FOUR": "worker", "CPATH": "/worker"},
                placement=FlexiblePlacementStrategy([[1]], node_group="left"),
            ),
            "right": WorkerGroup(
                session, Look, name="right", placement=PackedPlacementStrategy(7, 7, node_group="right")
            ),
            "nodes": WorkerGroup(
                session, Look, name="nodes", placement=NodePlacementStrategy([len(session.nodes) - 1])
            ),
        }  # fmt: skip
        for name, group in groups.items():
            answer[name] = group.wait_ready().execute("look").wait(60)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
