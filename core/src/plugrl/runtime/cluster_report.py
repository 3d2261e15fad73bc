"""What every node of a cluster has, beside what the driver has: the answer of ``plugrl plugins doctor --cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.config.schema import ClusterConfig
from plugrl.errors import UserError
from plugrl.plugins.fingerprint import describe_difference
from plugrl.plugins.ledger import Ledger
from plugrl.runtime.node_view import NodeView, view_nodes
from plugrl.runtime.session import SETUP_HOOK

_DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One living node.

    Attributes:
        node, host: how messages call it, and its host name.
        plugins: number of plugins that a worker has there; ``fingerprint`` of them.
        platform: what the probe of the driver's platform says there.
        resource: units of the platform's Ray resource, such as ``"8 NAME"``; empty where Ray counts none.
        mask: value of the platform's mask where the node was started, None where it is not set.
        variables: those that decide about devices there, by name.
        differences: each way in which its plugins are not the driver's, and each plugin that is broken there.
    """

    node: str
    host: str
    plugins: int
    fingerprint: str
    platform: str
    resource: str
    mask: str | None
    variables: Mapping[str, str]
    differences: tuple[str, ...]


def report_cluster(address: str, ledger: Ledger, platform_name: str | None = None) -> list[NodeReport]:
    """Join the Ray at ``address`` (``auto``: the one of this machine), ask its nodes, and leave it again.

    Raises:
        UserError: this process is connected to a Ray already.
        PlugRLError: the cluster cannot be joined.
    """
    import ray

    from plugrl.platforms import get_platform
    from plugrl.platforms.selection import current_selection
    from plugrl.runtime import local_ray
    from plugrl.runtime.nodes import label_of, living_nodes
    from plugrl.runtime.worker_environment import worker_environment

    if ray.is_initialized():
        raise UserError("This process is connected to a Ray already; leave it with ray.shutdown() first.")
    platform = get_platform(platform_name, allow_unavailable=True)
    selection = current_selection()
    assert selection is not None
    name, resource = selection.platform_name, platform.ray_resource_name()
    env = worker_environment(platform, name, ClusterConfig(ray_address=address), ledger, {})
    runtime_env = {"env_vars": env, "worker_process_setup_hook": SETUP_HOOK}
    try:
        local_ray.join(address, runtime_env=runtime_env, namespace="plugrl-doctor")
        nodes = living_nodes()
        views = view_nodes([node["NodeID"] for node in nodes], platform, name, _DEADLINE_S)
    finally:
        local_ray.stop()
    mask = platform.visible_devices_envvar()
    found = []
    for node in nodes:
        label = label_of(node["NodeManagerAddress"], node.get("NodeName", ""))
        counted = f"{node['Resources'].get(resource, 0):g} {resource}" if resource else ""
        found.append(_report(label, counted, views[node["NodeID"]], ledger, name, mask))
    return found


def _report(
    label: str, resource: str, view: NodeView, ledger: Ledger, platform_name: str, mask: str
) -> NodeReport:
    if view.error:
        unknown: dict[str, Any] = {"plugins": 0, "fingerprint": "", "platform": "", "mask": None, "variables": {}}
        return NodeReport(node=label, host="", resource=resource, differences=(view.error,), **unknown)
    state = f"{view.count} devices" if view.count else "available" if view.available else "not usable"
    reason = f" ({view.reason})" if view.reason else ""
    return NodeReport(
        node=label,
        host=view.host,
        plugins=len(view.rows),
        fingerprint=view.fingerprint,
        platform=f"{platform_name}: {state}{reason}",
        resource=resource,
        mask=view.variables.get(mask),
        variables=dict(view.variables),
        differences=(*describe_difference(view.rows, ledger.rows), *view.broken),
    )
