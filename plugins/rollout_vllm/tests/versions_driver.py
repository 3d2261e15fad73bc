"""Starts workers in node groups with interpreters of their own, and prints which engine each of them would use.

See test_versions.
"""

from __future__ import annotations

import json
import sys

from plugrl.config.schema import ClusterConfig
from plugrl.errors import PlugRLError
from plugrl.plugins import load_plugins
from plugrl.runtime import RaySession, Worker, WorkerGroup
from plugrl.runtime.placement import FlexiblePlacementStrategy

WAIT_S = 240


class Asked(Worker):
    """Says which engine its process has."""

    process_group = False

    def version(self) -> list[str]:
        """Return the version as the backend finds it, and the environment."""
        from plugrl_rollout_openai.in_process import installed_version

        return [installed_version("vllm", (), ("none",)), sys.prefix]


def main(interpreters: list[str]) -> None:
    """Print what the worker of each interpreter says, or what stopped it."""
    load_plugins()
    groups = [
        {"label": f"g{index}", "node_ranks": 0, "env_configs": [{"python_interpreter_path": path}]}
        for index, path in enumerate(interpreters)
    ]
    config = ClusterConfig.model_validate({"node_groups": groups, "start_timeout_s": WAIT_S})
    answers = []
    with RaySession(config, platform="cpu") as session:
        for index in range(len(interpreters)):
            placement = FlexiblePlacementStrategy([[index]], node_group=f"g{index}")
            group = WorkerGroup(session, Asked, name=f"w{index}", placement=placement)
            try:
                answers.append(group.wait_ready(WAIT_S).execute("version").wait(WAIT_S)[0])
            except PlugRLError as error:
                answers.append([type(error).__name__, str(error)])
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1:])
