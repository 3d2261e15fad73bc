"""Why devices are not to be had: a table of the nodes, the likely cause on each of them, and one thing to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugrl.platforms.devices import parse_mask
from plugrl.runtime.node_view import NodeView, variables_of, view_here, view_nodes
from plugrl.runtime.nodes import label_of, node_order

if TYPE_CHECKING:
    from plugrl.runtime.session import RaySession

_ANSWER_S = 30.0
_COLUMNS = ("node", "asked", "Ray total", "Ray free", "found there", "variables in force", "likely cause")
_COUNTED_EVERYWHERE = ("CPU", "memory", "object_store_memory")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is wanted of the cluster: ``wanted`` units of ``resource``, for the platform ``name`` with its mask.

    address is that of the cluster, None for the local Ray of this run.
    """

    resource: str
    wanted: int
    platform: str
    variable: str
    address: str | None


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One node: what Ray reports of it, and what it says of itself.

    others: accelerator resources that Ray counts there besides. holders: worker groups of this run that hold devices.
    """

    label: str
    alive: bool = True
    is_head: bool = False
    total: float = 0.0
    free: float = 0.0
    others: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    view: NodeView = field(default_factory=NodeView)


Finding = tuple[str, str]
"""The likely cause, and the sentence that says how to mend it; empty texts where there is nothing to say."""


def describe_shortage(session: RaySession, wanted: int) -> str:
    """Return the explanation for a session that lacks ``wanted`` devices, taken or not there at all."""
    platform = session.platform
    asked = Asked(
        resource=platform.ray_resource_name(),
        wanted=wanted,
        platform=session.platform_name,
        variable=platform.visible_devices_envvar(),
        address=session.config.ray_address,
    )
    return explain(asked, _rows(session, asked))


def explain(asked: Asked, rows: Sequence[NodeRow]) -> str:
    """Return the head line, the table with a row for each node, and what to do, as one text."""
    total, free = sum(row.total for row in rows), sum(row.free for row in rows)
    head = f"{asked.wanted} {asked.resource} are wanted, Ray has {total:g} in all and {free:g} free."
    findings = [_finding(asked, row) for row in rows]
    table = [_COLUMNS, *(_cells(asked, row, finding[0]) for row, finding in zip(rows, findings, strict=True))]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([head, *lines, _advice(asked, rows, findings, total)])


def _cells(asked: Asked, row: NodeRow, cause: str) -> tuple[str, ...]:
    view = row.view
    variables = [f"{name}={value or '(empty)'}" for name, value in view.variables.items()]
    if asked.variable and asked.variable not in view.variables and not view.error and row.alive:
        variables.insert(0, f"{asked.variable} unset")
    found = str(view.count) if view.available and view.count else "yes" if view.available else "none"
    found = found if row.alive and not view.error else "?"
    return (
        row.label,
        asked.resource,
        f"{row.total:g}",
        f"{row.free:g}",
        found,
        " ".join(variables) or "-",
        cause or "-",
    )


def _finding(asked: Asked, row: NodeRow) -> Finding:
    """Return the first cause that fits a node; the more certain ones are asked first."""
    causes: tuple[Callable[[Asked, NodeRow], Finding | None], ...] = (_gone, _silent, _masked)
    causes += (_undeclared_or_other,) if not row.total else (_taken,)
    for cause in causes:
        found = cause(asked, row)
        if found is not None:
            return found
    return "", ""


def _gone(asked: Asked, row: NodeRow) -> Finding | None:
    if row.alive:
        return None
    return "the node has left the cluster (stale)", f"Start node {row.label} again: `{_start(asked, row, None)}`."


def _silent(asked: Asked, row: NodeRow) -> Finding | None:
    return (row.view.error, f"Look at node {row.label} with `ray status`.") if row.view.error else None


def _masked(asked: Asked, row: NodeRow) -> Finding | None:
    mask = row.view.variables.get(asked.variable)
    if mask is None:
        return None
    count = len(parse_mask(mask) or [])
    again = "run it again" if asked.address is None else f"start the node again with `{_start(asked, row, None)}`"
    if not count:
        return (
            f"{asked.variable} is empty there: no device is visible",
            f"Unset {asked.variable} on node {row.label} and {again}.",
        )
    if row.total and row.free == row.total and row.total < asked.wanted:
        return (
            f"{asked.variable} shows {count} there",
            f"Let {asked.variable} on node {row.label} list more devices and {again}, or ask for fewer devices.",
        )
    return None


def _undeclared_or_other(asked: Asked, row: NodeRow) -> Finding | None:
    """Find out why Ray counts none on a node that is there and has no empty mask."""
    view = row.view
    named = view.variables.get("VERL_PLATFORM")
    if view.available:
        count = view.count or None
        what = f"{count} devices" if count else "devices"
        return (
            f"it has {what}, but was started without the resource {asked.resource}",
            f"Start node {row.label} again: `{_start(asked, row, count)}`.",
        )
    if row.others or named not in (None, asked.platform):
        what = ", ".join(row.others) or f"VERL_PLATFORM={named}"
        return (
            f"it is of another kind: {what}",
            f"Choose the platform of that hardware with `VERL_PLATFORM`, or join a cluster that has {asked.resource}.",
        )
    return f"platform {asked.platform} finds no device: {view.reason or 'no reason given'}", ""


def _taken(asked: Asked, row: NodeRow) -> Finding | None:
    if row.free >= row.total:
        return None
    if row.holders:
        held = ", ".join(row.holders)
        return f"held by this run's {held}", "Place the components on fewer devices (cluster.component_placement)."
    address = f" --address={asked.address}" if asked.address else ""
    return (
        "other jobs hold them",
        f"See who holds them with `ray list actors{address} --filter state=ALIVE`, and wait or ask for fewer devices.",
    )


def _advice(asked: Asked, rows: Sequence[NodeRow], findings: Sequence[Finding], total: float) -> str:
    if sum(row.free for row in rows) >= asked.wanted:
        return "Devices are free, so processes start slowly there: raise `cluster.start_timeout_s`."
    nothing = not total and not any(row.view.available or row.view.error or not row.alive for row in rows)
    masked = any(cause.startswith(asked.variable) for cause, _ in findings if asked.variable)
    if asked.address is not None and nothing and not masked:
        return (
            f"No node of the cluster at {asked.address} has {asked.resource}: if that is the wrong one, give the right "
            "address with `cluster.ray_address=HOST:PORT`, as `ray start --head` printed it."
        )
    for _, fix in findings:
        if fix:
            return fix
    if asked.address is None:
        return f"Place the components on the {total:g} devices that there are: `cluster.component_placement.actor=0`."
    return f"Ask for at most {total:g} devices (cluster.component_placement), or add nodes to the cluster."


def _start(asked: Asked, row: NodeRow, count: int | None) -> str:
    """Return the command that starts a node with the resource."""
    amount = str(count or "N")
    option = f"--num-gpus={amount}" if asked.resource == "GPU" else f"--resources='{{\"{asked.resource}\": {amount}}}'"
    return f"ray start {'--head' if row.is_head else f'--address={asked.address}'} {option}"


def _rows(session: RaySession, asked: Asked) -> list[NodeRow]:
    import ray

    nodes = sorted(ray.nodes(), key=lambda node: (not node["Alive"], *node_order(node)))
    free = _free_by_node()
    if session.is_local:
        here = view_here(session.platform_name, variables_of(session.platform), os.environ)
        views = {node["NodeID"]: here for node in nodes}
    else:
        alive = [node["NodeID"] for node in nodes if node["Alive"]]
        views = view_nodes(alive, session.platform, session.platform_name, _ANSWER_S)
    return [_row(session, asked, node, free, views.get(node["NodeID"], NodeView())) for node in nodes]


def _row(
    session: RaySession,
    asked: Asked,
    node: Mapping[str, Any],
    free: Mapping[str, Mapping[str, float]],
    view: NodeView,
) -> NodeRow:
    node_id, resources = node["NodeID"], node["Resources"]
    groups = [
        group.name
        for group in session.open_groups()
        if any(group.seats[rank].node.node_id == node_id for rank in group.known_processes())
    ]
    others = [
        key for key in resources if ":" not in key and key not in _COUNTED_EVERYWHERE and key != asked.resource
    ]
    return NodeRow(
        label=label_of(node["NodeManagerAddress"], node.get("NodeName", "")),
        alive=node["Alive"],
        is_head="node:__internal_head__" in resources,
        total=float(resources.get(asked.resource, 0)),
        free=float(free.get(node_id, {}).get(asked.resource, 0)),
        others=tuple(sorted(others)),
        holders=tuple(groups),
        view=view,
    )


def _free_by_node() -> Mapping[str, Mapping[str, float]]:
    """Return what Ray has left of each resource by node; it tells the sum over nodes alone in public."""
    from ray._private import state

    return state.available_resources_per_node()
