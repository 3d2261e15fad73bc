"""From the configuration to the placement of every component: one pass that reports all mistakes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plugrl.errors import nearest, one_of
from plugrl.runtime.placement.errors import Problems, Wrong
from plugrl.runtime.placement.form import ComponentPlacement, Placement, make_component
from plugrl.runtime.placement.grammar import parse_placement
from plugrl.runtime.placement.layout import CLUSTER, Kind, Layout, Node, single_node
from plugrl.runtime.placement.node_groups import layout_of

if TYPE_CHECKING:
    from plugrl.config.schema import ClusterConfig

KEY = "cluster.component_placement"
NOUNS: Mapping[Kind, str] = {"device": "device", "hardware": "hardware unit", "node": "node"}
_MAP_KEYS = ("node_group", "placement")
_ENOUGH = 4096
"""Resources to read a placement with where a mistake elsewhere leaves open how many there are."""


def place(
    cluster: ClusterConfig,
    defaults: Mapping[str, object],
    nodes: Sequence[Node],
    one_device: Sequence[str] = (),
) -> Placement:
    """Return where the processes of every component run.

    Args:
        cluster: the configuration's section.
        defaults: the components of this run, with the value that each has when the configuration leaves it out.
        nodes: the nodes of the cluster, by rank.
        one_device: components whose workers hold one device each.

    Raises:
        PlacementError: every mistake in groups and placements, each with the path of its key.
    """
    problems = Problems()
    layout = layout_of(cluster, nodes, problems)
    components = place_components(cluster.component_placement, defaults, layout, problems, one_device)
    problems.raise_if_any()
    return Placement(layout, components)


def resolve_placement(
    component_placement: Mapping[str, object], defaults: Mapping[str, object], device_count: int
) -> dict[str, tuple[int, ...]]:
    """Return the device of each rank, by component, where all devices are counted as those of one node.

    Args:
        component_placement: values by component, or by several of them separated by commas.
        defaults: the components of this run with the value each has when the configuration leaves it out.
        device_count: number of devices, counted from 0.

    Raises:
        PlacementError: every mistake of the configuration, each with the path of its key.
    """
    problems = Problems()
    placed = place_components(component_placement, defaults, single_node(device_count), problems, tuple(defaults))
    problems.raise_if_any()
    return {name: component.one_device_each for name, component in placed.items()}


def read_groups(layout: Layout, groups: object) -> tuple[str, ...]:
    """Return the labels that a ``node_group`` names: a label, ``"a,b"`` or a list; None is the whole cluster.

    Raises Wrong: ``type``, ``empty`` or ``unknown_group``.
    """
    if groups is None:
        return (CLUSTER,)
    labels = groups.split(",") if isinstance(groups, str) else groups
    if isinstance(labels, int) and not isinstance(labels, bool):
        labels = (labels,)
    if not isinstance(labels, Sequence) or not all(isinstance(label, (str, int)) for label in labels):
        raise Wrong("type", f"{groups!r} names no node group: use a label, several with commas, or a list of them.")
    names = tuple(str(label).strip() for label in labels)
    if not names or not all(names):
        raise Wrong("empty", f"{groups!r} has an empty part: name a node group.")
    for name in names:
        layout.group(name)
    return names


def place_components(
    given: Mapping[str, object],
    defaults: Mapping[str, object],
    layout: Layout,
    problems: Problems,
    one_device: Sequence[str],
) -> dict[str, ComponentPlacement]:
    """Return the placement of every component; mistakes go to ``problems`` and leave their component out."""
    values: dict[str, tuple[str, object]] = {name: (name, value) for name, value in defaults.items()}
    named: set[str] = set()
    for key, value in given.items():
        for name in (part.strip() for part in str(key).split(",")):
            if name not in defaults:
                problems.add(f"{KEY}.{key}", "unknown_component", _unknown(name, defaults))
            elif name in named:
                problems.add(f"{KEY}.{key}", "duplicate_component", f"component {name!r} is placed twice.")
            else:
                named.add(name)
                values[name] = (str(key), value)
    placed: dict[str, ComponentPlacement] = {}
    wrong_values: list[object] = []
    for name in sorted(values, key=lambda name: name not in named):
        key, value = values[name]
        if name not in named and value in wrong_values:
            continue  # It follows a component whose placement is wrong, and was given nowhere.
        component = _component(value, layout, f"{KEY}.{key}", problems)
        try:
            if component is not None and name in one_device:
                _ = component.one_device_each
        except Wrong as wrong:
            problems.catch(f"{KEY}.{key}", wrong)
            component = None
        if component is None:
            wrong_values.append(value)
        else:
            placed[name] = component
    return {name: placed[name] for name in values if name in placed}


def _component(value: object, layout: Layout, path: str, problems: Problems) -> ComponentPlacement | None:
    """Return the placement of one value, None after a mistake; of a map every key is checked."""
    labels: object = None
    where = path
    if isinstance(value, Mapping):
        for key in value:
            if key not in _MAP_KEYS:
                problems.add(f"{path}.{key}", "unknown_key", f"unknown key; a placement has {one_of(_MAP_KEYS)}.")
        if "placement" not in value:
            problems.add(path, "empty", "a node group needs a placement: {node_group: LABEL, placement: 0-3}.")
            return None
        labels, value, where = value.get("node_group"), value["placement"], f"{path}.placement"
    try:
        groups = read_groups(layout, labels)
        selected = layout.select(groups)
    except Wrong as wrong:
        problems.catch(f"{path}.node_group", wrong)
        _read_anyway(value, where, problems)
        return None
    if not all(layout.group(label).sound for label in groups):
        _read_anyway(value, where, problems)
        return None
    kinds = {resource.kind for resource, _ in selected}
    noun = NOUNS[kinds.pop()] if len(kinds) == 1 else "resource"
    try:
        processes = parse_placement(value, len(selected), noun)
        return make_component(layout, groups, processes)
    except Wrong as wrong:
        wanted = wrong.wanted if groups == (CLUSTER,) and noun == "device" else 0
        of_group = "" if groups == (CLUSTER,) or wrong.code != "out_of_range" else f" (node group {', '.join(groups)})"
        problems.add(where, wrong.code, f"{wrong}{of_group}", wanted)
        return None


def _read_anyway(value: object, path: str, problems: Problems) -> None:
    """Note what is wrong with a value whatever the number of resources is."""
    try:
        parse_placement(value, _ENOUGH, "resource")
    except Wrong as wrong:
        if wrong.code not in ("out_of_range", "indivisible"):
            problems.catch(path, wrong)


def _unknown(name: str, defaults: Mapping[str, object]) -> str:
    close = nearest(name, defaults)
    hint = f" Did you mean {close!r}?" if close else ""
    return f"no component {name!r} in this run (it has {one_of(defaults)}).{hint}"
