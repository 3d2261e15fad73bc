"""Which component runs where: grammar, strategies, node groups, and the one form they all produce; without Ray."""

from __future__ import annotations

from plugrl.runtime.placement.errors import PlacementError
from plugrl.runtime.placement.form import ComponentPlacement, Placement, ProcessPlacement
from plugrl.runtime.placement.grammar import Processes, format_placement, parse_placement
from plugrl.runtime.placement.layout import Layout, Node, NodeEnvironment, NodeGroup, Resource
from plugrl.runtime.placement.resolve import KEY, place, resolve_placement
from plugrl.runtime.placement.strategies import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
)

__all__ = [
    "KEY",
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "Layout",
    "Node",
    "NodeEnvironment",
    "NodeGroup",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementError",
    "PlacementStrategy",
    "ProcessPlacement",
    "Processes",
    "Resource",
    "format_placement",
    "parse_placement",
    "place",
    "resolve_placement",
]
