"""What the processes of workers are started with: the variables of four levels, and the interpreter."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plugrl.runtime.node_facts import NodeFacts
from plugrl.runtime.placement.environment import MergeMode, changed_since, worker_variables
from plugrl.runtime.placement.errors import Problems
from plugrl.runtime.placement.layout import Layout, NodeEnvironment


@dataclass(frozen=True, kw_only=True)
class ProcessEnvironments:
    """The environments of a session's workers.

    Attributes:
        layout: the cluster and its groups.
        nodes: what each node said of itself, by rank.
        driver: variables that the driver's node was started with.
        job: variables that every worker of the job gets, which what the driver changed does not replace.
        mask: the platform's mask, which is set for each worker alone; empty where there is none.
        mode: how search paths are merged.
    """

    layout: Layout
    nodes: Sequence[NodeFacts]
    driver: Mapping[str, str]
    job: Mapping[str, str]
    mask: str = ""
    mode: MergeMode = "append"

    def runtime_env(self, group: str, node_rank: int, own: Mapping[str, str]) -> dict[str, Any]:
        """Return Ray's ``runtime_env`` of a worker; empty where it differs in nothing from the job's.

        Args:
            group: label of the node group that it was placed by.
            node_rank: its node.
            own: what the worker group asks for, and the worker's own mask.
        """
        environment = self.of(group, node_rank)
        changed = {
            name: value
            for name, value in changed_since(self.driver, os.environ).items()
            if name not in self.job and name != self.mask
        }
        variables = worker_variables(self.nodes[node_rank].variables, changed, environment.variables, own, self.mode)
        found: dict[str, Any] = {"env_vars": variables} if variables else {}
        if environment.interpreter:
            found["py_executable"] = shlex.quote(environment.interpreter)
        return found

    def of(self, group: str, node_rank: int) -> NodeEnvironment:
        """Return what the configuration says of a group's workers on a node."""
        return self.layout.group(group).environment(node_rank)

    def check(self) -> None:
        """Raise PlacementError for every interpreter that a node has not, and every variable that is not free."""
        problems = Problems()
        for group in self.layout.configured:
            for rank, environment in group.environments.items():
                where = f"node group {group.label!r}, node {rank} ({self.layout.nodes[rank].name})"
                path = environment.interpreter
                problem = self.nodes[rank].interpreters.get(path, "") if path else ""
                if problem:
                    text = f"{where}: {path} cannot be the interpreter of workers: {problem}."
                    problems.add("cluster.node_groups", "interpreter", text)
                if self.mask and self.mask in environment.variables:
                    text = f"{where}: {self.mask} cannot be given to workers, each gets its own device in it."
                    problems.add("cluster.node_groups", "mask", text)
        problems.raise_if_any()


def interpreters_of(layout_groups: Sequence[Any]) -> tuple[str, ...]:
    """Return the interpreters that the configuration's node groups name, each once."""
    paths = (entry.python_interpreter_path for group in layout_groups for entry in group.env_configs)
    return tuple(dict.fromkeys(path for path in paths if path))
