"""The resolved placement as rows: what `plugrl config placement` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from plugrl.config.schema import RunConfig
from plugrl.platforms import get_platform
from plugrl.platforms.selection import current_selection
from plugrl.platforms.visible import visible_count
from plugrl.runners.components import place_components, rl_components
from plugrl.runners.embodied_components import MEASURING, TRAINING
from plugrl.runtime import RaySession
from plugrl.runtime.placement import Node, Placement

COLUMNS = ("component", "rank", "node", "on node", "device", "node group", "variables", "interpreter")


@dataclass(frozen=True, kw_only=True)
class PlacementRow:
    """One process.

    Attributes:
        node: rank of its node; ``node_name`` is what the node is called.
        local_devices: its devices by their index on the node; ``devices`` by their number through all nodes.
        variables: names of the variables that its node group sets.
        interpreter: of its node group; empty for the driver's.
    """

    component: str
    rank: int
    node: int
    node_name: str
    local_devices: tuple[int, ...]
    devices: tuple[int, ...]
    node_group: str
    variables: tuple[str, ...]
    interpreter: str

    def cells(self) -> tuple[str, ...]:
        """Return the row as texts, one for each of :data:`COLUMNS`."""
        node = f"{self.node}: {self.node_name}" if self.node_name else str(self.node)
        return (
            self.component, str(self.rank), node, _numbers(self.local_devices), _numbers(self.devices),
            self.node_group, ", ".join(self.variables) or "-", self.interpreter or "-",
        )  # fmt: skip


@dataclass(frozen=True)
class PlacementTable:
    """The rows of a placement, the nodes it is for, and whether those are assumed rather than found."""

    placement: Placement
    assumed: bool

    @property
    def rows(self) -> list[PlacementRow]:
        """One row for each process, by component and rank."""
        rows = []
        for name, component in self.placement.components.items():
            for process in component.processes:
                environment = self.placement.environment(process)
                rows.append(
                    PlacementRow(
                        component=name, rank=process.rank, node=process.node_rank,
                        node_name=self.placement.layout.nodes[process.node_rank].name,
                        local_devices=process.local_devices, devices=process.devices, node_group=process.node_group,
                        variables=tuple(environment.variables), interpreter=environment.interpreter,
                    )
                )  # fmt: skip
        return rows

    @property
    def title(self) -> str:
        """One line on the nodes."""
        nodes = self.placement.layout.nodes
        counts = ", ".join(str(node.devices) for node in nodes)
        kind = nodes[0].device_type
        return (
            f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}{' (assumed)' if self.assumed else ''}, "
            f"{kind} devices: {counts}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return nodes, rows and the placement as the configuration would say it, as plain values."""
        return {
            "assumed": self.assumed,
            "nodes": [asdict(node) for node in self.placement.layout.nodes],
            "processes": [asdict(row) for row in self.rows],
            "component_placement": self.placement.to_config(),
        }


def placement_table(
    config: RunConfig, task: Literal["train", "sft", "eval"], nodes: int | None = None, devices: int | None = None
) -> PlacementTable:
    """Resolve the placement of a command without starting anything, if the nodes need not be asked.

    Args:
        config: the configuration; ``task`` is the command that it is for.
        nodes: nodes to assume; ``cluster.num_nodes`` when omitted, and one where no cluster is joined. A cluster whose
            number of nodes is not known is joined and asked.
        devices: devices of each node to assume; those of this machine when omitted.

    Raises:
        PlacementError: every mistake in placement and node groups.
    """
    count = nodes or config.cluster.num_nodes or (None if config.cluster.ray_address else 1)
    needed = _needed(config, task)
    if count is None:
        with RaySession(config.cluster, platform=config.platform) as session:
            return PlacementTable(place_components(config, needed, session.layout.nodes), assumed=False)
    found = _assumed(config, count, devices)
    assumed = count > 1 or devices is not None or config.cluster.ray_address is not None
    return PlacementTable(place_components(config, needed, found), assumed)


def _assumed(config: RunConfig, count: int, devices: int | None) -> Sequence[Node]:
    platform = get_platform(config.platform, allow_unavailable=devices is not None)
    selection = current_selection()
    each = visible_count(platform) if devices is None else devices
    return [Node(devices=each, device_type=selection.platform_name if selection else "")] * count


def _needed(config: RunConfig, task: Literal["train", "sft", "eval"]) -> tuple[str, ...]:
    if config.is_embodied and task != "sft":
        return TRAINING if task == "train" else MEASURING
    if task == "train":
        return rl_components(config)
    return ("actor",) if task == "sft" else ("rollout",)


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "-"
