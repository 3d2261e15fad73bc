"""What is asked of every node of a cluster before devices are numbered: its variables, and whether interpreters fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plugrl.errors import ConfigError, PlugRLError, RuntimeTimeout, one_line
from plugrl.runtime.process import environment_of, parent

NODE_RANK = "PLUGRL_NODE_RANK"
_INTERPRETER_S = 60.0
_TICK_S = 0.2
# Asks for what must be equal: Ray refuses processes of another Python or Ray, but says so only in its own logs.
_QUESTION = """
import json, sys
from importlib.metadata import version
print(json.dumps(["%d.%d" % sys.version_info[:2], version("ray"), version("plugrl")]))
"""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A node as it was started.

    Attributes:
        variables: those of its processes, not those of the job.
        interpreters: why an interpreter of the configuration cannot be used there, by path; empty when it can.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    interpreters: Mapping[str, str] = field(default_factory=dict)


def facts_here(environment: Mapping[str, str], interpreters: Sequence[str]) -> NodeFacts:
    """Describe this machine, whose node was started with ``environment``."""
    return NodeFacts(
        variables=dict(environment), interpreters={path: interpreter_problem(path) for path in interpreters}
    )


def interpreter_problem(path: str) -> str:
    """Return why workers cannot run under an interpreter, in one phrase; empty when they can."""
    if not os.path.isfile(path):
        return "there is no such file"
    if not os.access(path, os.X_OK):
        return "it cannot be executed"
    try:
        done = subprocess.run(
            [path, "-c", _QUESTION], capture_output=True, text=True, timeout=_INTERPRETER_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run: {one_line(error)}"
    lines = done.stdout.split("\n")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"it has not the packages of a worker: {last}"
    theirs = json.loads(lines[0])
    ours = [f"{sys.version_info[0]}.{sys.version_info[1]}", version("ray"), version("plugrl")]
    names = ("Python", "ray", "plugrl")
    differs = [f"{n} {t} instead of {o}" for n, t, o in zip(names, theirs, ours, strict=True) if t != o]
    return f"it has {', '.join(differs)}" if differs else ""


def ask_nodes(node_ids: Sequence[str], interpreters: Sequence[str], timeout_s: float) -> dict[str, NodeFacts]:
    """Ask every node at once and return the answers by node.

    Raises:
        RuntimeTimeout: not every node answered in time.
        PlugRLError: Ray cannot run a process of this job on a node.
    """
    remote = ray.remote(_facts_of_node)
    refs = {
        remote.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(tuple(interpreters)): node_id
        for node_id in node_ids
    }
    done, late = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s) if refs else ([], [])
    if late:
        for ref in late:
            ray.cancel(ref, force=True)
        raise RuntimeTimeout(f"{len(late)} of {len(refs)} nodes did not say within {timeout_s:g} s what they are.")
    try:
        return {refs[ref]: ray.get(ref, timeout=timeout_s) for ref in done}
    except ray.exceptions.RayError as error:
        raise PlugRLError(f"Ray cannot run a process of this job on every node: {one_line(error)}") from error


def _facts_of_node(interpreters: Sequence[str]) -> NodeFacts:
    # The process above a worker is Ray's own of the node. A worker's own environment holds the job's variables too.
    return facts_here(environment_of(parent()) or os.environ, interpreters)


def wait_for_nodes(count: int, timeout_s: float) -> None:
    """Wait until so many nodes have joined. Raises RuntimeTimeout, which says how many have."""
    deadline = time.monotonic() + timeout_s
    while (alive := sum(bool(node["Alive"]) for node in ray.nodes())) < count:
        if time.monotonic() >= deadline:
            raise RuntimeTimeout(
                f"cluster.num_nodes: {alive} of {count} nodes have joined within {timeout_s:g} s "
                "(cluster.start_timeout_s)."
            )
        time.sleep(_TICK_S)


def order_by_rank(nodes: Sequence[Mapping[str, Any]], facts: Mapping[str, NodeFacts]) -> list[Mapping[str, Any]]:
    """Return the nodes, as Ray describes them, by the rank that each was started with; as given where none has one.

    Raises ConfigError when only some have one, or the ranks are not 0, 1, ... each once.
    """
    given = {node["NodeID"]: facts[node["NodeID"]].variables.get(NODE_RANK, "").strip() for node in nodes}
    if not any(given.values()):
        return list(nodes)
    told = ", ".join(f"{node.get('NodeName') or node['NodeManagerAddress']}={given[node['NodeID']] or 'unset'}"
                     for node in nodes)  # fmt: skip
    wanted = {str(rank) for rank in range(len(nodes))}
    if set(given.values()) != wanted:
        raise ConfigError(
            f"{NODE_RANK} must be set on every node or on none, before Ray is started there, and number the nodes from "
            f"0 to {len(nodes) - 1}; it is {told}."
        )
    return sorted(nodes, key=lambda node: int(given[node["NodeID"]]))
