"""The nodes of a session that has just started or joined Ray: found, ordered, grouped, and asked what they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plugrl.runtime.node_facts import ask_nodes, facts_here, order_by_rank, wait_for_nodes
from plugrl.runtime.nodes import NodeSlots, cluster_nodes, living_nodes, local_nodes
from plugrl.runtime.placement.environment import merge_mode
from plugrl.runtime.placement.errors import Problems
from plugrl.runtime.placement.layout import Layout, Node
from plugrl.runtime.placement.node_groups import layout_of
from plugrl.runtime.process_environment import ProcessEnvironments, interpreters_of

if TYPE_CHECKING:
    from plugrl.config.schema import ClusterConfig
    from plugrl.runtime.session import RaySession


def find_nodes(session: RaySession, job: Mapping[str, str]) -> tuple[list[NodeSlots], ProcessEnvironments]:
    """Return the nodes by rank, and the environments of workers on them; ``job`` is what all workers get.

    Raises:
        RuntimeTimeout: not so many nodes have joined as the configuration says.
        PlacementError: mistakes in node groups, all together.
        ConfigError: the nodes contradict each other in their ranks.
        DeviceError: a node's mask is empty or wrong.
    """
    config, platform, platform_name = session.config, session.platform, session.platform_name
    mode, interpreters = merge_mode(), interpreters_of(config.node_groups)
    if session.is_local:
        nodes = local_nodes(platform, platform_name)
        facts = [facts_here(os.environ, interpreters)]
        driver = facts[0].variables
    else:
        timeout_s = config.start_timeout_s
        if config.num_nodes is not None:
            wait_for_nodes(config.num_nodes, timeout_s)
        alive = living_nodes()
        told = ask_nodes([node["NodeID"] for node in alive], interpreters, timeout_s)
        used = order_by_rank(alive, told)[: config.num_nodes]
        nodes = cluster_nodes(platform, platform_name, timeout_s, used)
        facts = [told[node.node_id] for node in nodes]
        driver = told[session.local_node_id].variables
    environments = ProcessEnvironments(
        layout=session_layout(config, nodes, platform_name), nodes=facts, driver=driver, job=job,
        mask=platform.visible_devices_envvar(), mode=mode,
    )  # fmt: skip
    environments.check()
    return nodes, environments


def session_layout(config: ClusterConfig, nodes: list[NodeSlots], device_type: str) -> Layout:
    """Return the layout of a session's nodes. Raises PlacementError."""
    problems = Problems()
    found = [Node(devices=node.devices, device_type=device_type, name=node.label) for node in nodes]
    layout = layout_of(config, found, problems)
    problems.raise_if_any()
    return layout
