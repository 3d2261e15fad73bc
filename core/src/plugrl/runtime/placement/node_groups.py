"""Node groups of a configuration: checked in one pass, every mistake with the path of its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugrl.errors import NotRegistered
from plugrl.runtime.placement.errors import Problems, Wrong
from plugrl.runtime.placement.grammar import parse_ranks
from plugrl.runtime.placement.hardware import HARDWARE
from plugrl.runtime.placement.layout import RESERVED, Layout, Node, NodeEnvironment, NodeGroup, Resource

if TYPE_CHECKING:
    from plugrl.config.schema import ClusterConfig
    from plugrl.config.schema.cluster import EnvironmentConfig, HardwareConfig, NodeGroupConfig
    from plugrl.runtime.placement.units import HardwareUnit

KEY = "cluster.node_groups"


def layout_of(cluster: ClusterConfig, nodes: Sequence[Node], problems: Problems) -> Layout:
    """Return the nodes with the groups of the configuration; groups with a mistake are in it as far as they go."""
    layout = Layout(tuple(nodes))
    if cluster.num_nodes is not None and cluster.num_nodes > len(nodes):
        there = f"there {'is' if len(nodes) == 1 else 'are'} {len(nodes)}"
        hint = "" if cluster.ray_address else " A local Ray has one: join a cluster with cluster.ray_address."
        problems.add("cluster.num_nodes", "num_nodes", f"{cluster.num_nodes} nodes are wanted, {there}.{hint}")
    groups: list[NodeGroup] = []
    for index, config in enumerate(cluster.node_groups):
        path = f"{KEY}[{index}]"
        _check_label(config.label, [group.label for group in groups], f"{path}.label", problems)
        groups.append(_group(config, layout, path, problems))
    return layout.add_groups(groups)


def _check_label(label: str, earlier: Sequence[str], path: str, problems: Problems) -> None:
    if label in RESERVED:
        problems.add(path, "reserved_label", f"{label!r} is the name of a built-in group: choose another.")
    elif label in earlier:
        problems.add(path, "duplicate_group", f"two node groups are called {label!r}.")
    elif not label.strip() or label != label.strip() or "," in label:
        problems.add(path, "label", f"{label!r} is no label: it may not be empty, hold commas or end in spaces.")


def _group(config: NodeGroupConfig, layout: Layout, path: str, problems: Problems) -> NodeGroup:
    before = len(problems.found)
    ranks = _node_ranks(config.node_ranks, len(layout.nodes), f"{path}.node_ranks", problems)
    units = _units(config, ranks, f"{path}.hardware", problems)
    sound = len(problems.found) == before
    return NodeGroup(
        label=config.label,
        node_ranks=ranks or (),
        resources=units or _plain(layout, ranks or (), config.ignore_hardware),
        environments=_environments(config.env_configs, ranks, layout, f"{path}.env_configs", problems),
        sound=sound,
    )


def _plain(layout: Layout, ranks: Sequence[int], ignore_hardware: bool) -> tuple[Resource, ...]:
    """Return accelerators, or the nodes where the group says that it does not care for hardware."""
    if ignore_hardware:
        return tuple(Resource(kind="node", type="node", node_rank=rank) for rank in ranks)
    return layout.resources_of(ranks)


def _node_ranks(value: object, count: int, path: str, problems: Problems) -> tuple[int, ...] | None:
    try:
        return parse_ranks(value, count)
    except Wrong as wrong:
        problems.add(path, wrong.code, str(wrong))
        return None


def _environments(
    configs: Sequence[EnvironmentConfig], ranks: Sequence[int] | None, layout: Layout, path: str, problems: Problems
) -> dict[int, NodeEnvironment]:
    """Return the environment of each node; one that two entries name has an error."""
    found: dict[int, NodeEnvironment] = {}
    for index, config in enumerate(configs):
        here = f"{path}[{index}]"
        variables = _variables(config.env_vars, f"{here}.env_vars", problems)
        named: Sequence[int] | None = ranks
        if config.node_ranks is not None:
            named = _node_ranks(config.node_ranks, len(layout.nodes), f"{here}.node_ranks", problems)
        for rank in named or ():
            if ranks is not None and rank not in ranks:
                problems.add(f"{here}.node_ranks", "outside_group", f"node {rank} is not in this group's node_ranks.")
            elif rank in found:
                problems.add(f"{here}.node_ranks", "duplicate", f"node {rank} has an entry of this group already.")
            else:
                interpreter = config.python_interpreter_path or ""
                found[rank] = NodeEnvironment(variables=variables, interpreter=interpreter)
    return found


def _variables(entries: Sequence[dict[str, str]], path: str, problems: Problems) -> dict[str, str]:
    variables: dict[str, str] = {}
    for index, entry in enumerate(entries):
        if len(entry) != 1:
            names = ", ".join(entry) or "none"
            problems.add(f"{path}[{index}]", "env_var", f"an entry holds one variable, this one holds {names}.")
        for name, value in entry.items():
            if not name or "=" in name or "\0" in name + value:
                problems.add(f"{path}[{index}]", "env_var", f"{name!r} cannot be the name of a variable.")
            elif name in variables:
                problems.add(f"{path}[{index}]", "duplicate", f"{name} is set twice.")
            variables[name] = value
    return variables


def _units(
    config: NodeGroupConfig, ranks: Sequence[int] | None, path: str, problems: Problems
) -> tuple[Resource, ...]:
    """Return the hardware units as resources, in the order of their nodes; empty where they do not count."""
    sections = config.hardware
    if not sections:
        return ()
    if len(sections) > 1:
        types = ", ".join(section.type for section in sections)
        problems.add(path, "several_hardware", f"a node group has one type of hardware, not {types}.")
    units = [unit for section in sections for unit in _units_of(section, path, problems)]
    for index, unit in enumerate(units):
        if ranks is not None and unit.node_rank not in ranks:
            text = f"node {unit.node_rank} is not in this group's node_ranks."
            problems.add(f"{path}.configs[{index}].node_rank", "outside_group", text)
        if unit in units[:index]:
            problems.add(f"{path}.configs[{index}]", "duplicate_hardware", "the same unit is listed twice.")
    if config.ignore_hardware:
        return ()
    return tuple(
        Resource(kind="hardware", type=sections[0].type, node_rank=unit.node_rank, unit=unit)
        for unit in sorted(units, key=lambda unit: unit.node_rank)
    )


def _units_of(section: HardwareConfig, path: str, problems: Problems) -> list[HardwareUnit]:
    from pydantic import ValidationError  # not at the top: the registry of hardware must be quick to import

    try:
        unit_type = HARDWARE.get(section.type)
    except NotRegistered as error:
        problems.add(f"{path}.type", "unknown_hardware", str(error))
        return []
    if not section.configs:
        problems.add(f"{path}.configs", "empty", f"hardware {section.type!r} has no unit.")
    units: list[HardwareUnit] = []
    for index, values in enumerate(section.configs):
        try:
            units.append(unit_type.model_validate(values))
        except ValidationError as error:
            for item in error.errors(include_url=False):
                where = ".".join((f"{path}.configs[{index}]", *map(str, item["loc"])))
                problems.add(where, "hardware_config", _message(item))
    return units


def _message(item: Any) -> str:
    text: str = item["msg"]
    return f"{text[:1].lower()}{text[1:]}."
