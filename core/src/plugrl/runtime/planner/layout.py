"""From a plan to the keys of a configuration and back.

In each phase a stage takes the contiguous devices after those of the stages before it, from device 0 on; components of
a stage share its range, one process on each device. What the placement does not say stands in the section ``flow``::

    cluster:
      component_placement: {env: 0-1, rollout: 2-3, actor: 0-3}
    flow:
      phases:
        - {chunk: 8, stages: [[env], [rollout]]}
        - {chunk: 64, stages: [[actor]]}
      swapped: [actor]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.runtime.placement.errors import Wrong
from plugrl.runtime.placement.grammar import format_placement, parse_placement
from plugrl.runtime.planner.case import Phase, Plan, Stage
from plugrl.runtime.planner.reader import Reader
from plugrl.runtime.planner.simulation import first_device

PLACEMENT, FLOW = "cluster.component_placement", "flow"


def plan_to_keys(plan: Plan) -> dict[str, Any]:
    """Return the keys of a configuration that a plan sets: ``cluster.component_placement`` and ``flow``, nested."""
    placement = {}
    for phase in plan.phases:
        for s, stage in enumerate(phase.stages):
            first = first_device(phase, s)
            for name in stage.components:
                placement[name] = format_placement([(first + i,) for i in range(stage.devices)])
    phases = [{"chunk": phase.chunk, "stages": [list(s.components) for s in phase.stages]} for phase in plan.phases]
    return {
        "cluster": {"component_placement": placement},
        "flow": {"phases": phases, "swapped": list(plan.swapped)},
    }


def plan_from_keys(component_placement: Mapping[str, Any], flow: Mapping[str, Any], devices: int) -> Plan:
    """Return the plan that a configuration holds: what :func:`plan_to_keys` wrote, read back.

    Args:
        component_placement: devices by component, each a number or one range such as ``2-5``; a key may name several
            components.
        flow: the section that :func:`plan_to_keys` wrote; a phase without a chunk has that of the section.
        devices: how many devices there are.

    Raises:
        ConfigError: the keys do not make a plan; with every problem and its path.
    """
    reader = Reader(FLOW)
    ranges: dict[str, tuple[int, int]] = {}
    for key, value in component_placement.items():
        for name in str(key).split(","):
            ranges[name.strip()] = _range(reader, value, devices, f"{PLACEMENT}.{key}")
    phases = []
    for p, given in enumerate(reader.field(flow, "phases", FLOW, reader.items, list)):
        path = f"{FLOW}.phases[{p}]"
        phase = reader.mapping(given, path)
        chunk = reader.integer(1)(phase.get("chunk") or flow.get("chunk"), f"{path}.chunk")
        stages: list[Stage] = []
        for s, names in enumerate(reader.field(phase, "stages", path, reader.items, list)):
            listed = reader.items(names, f"{path}.stages[{s}]", at_least=1)
            expected = sum(stage.devices for stage in stages)
            stages.append(Stage(tuple(listed), _devices(reader, listed, ranges, expected, f"{path}.stages[{s}]")))
        phases.append(Phase(chunk, tuple(stages)))
    swapped = reader.items(flow.get("swapped", []), f"{FLOW}.swapped")
    reader.finish()
    return Plan(tuple(phases), tuple(swapped))


def _devices(reader: Reader, names: list[Any], ranges: Mapping[str, tuple[int, int]], first: int, path: str) -> int:
    """Return how many devices the components of a stage share, whose range must begin at ``first``."""
    count = 1
    for name in names:
        if name not in ranges:
            reader.problem(path, f"{name!r} has no place in {PLACEMENT}.")
            continue
        begin, end = ranges[name]
        count = end - begin + 1
        if begin != first:
            reader.problem(path, f"{name!r} begins at device {begin}, and this stage at device {first}.")
        elif ranges[name] != ranges.get(names[0]):
            reader.problem(path, f"{name!r} and {names[0]!r} share a stage and so the same devices.")
    return count


def _range(reader: Reader, value: Any, count: int, path: str) -> tuple[int, int]:
    """Return the first and the last device of one contiguous range with a process on each device."""
    try:
        processes = parse_placement(value, count)
    except Wrong as wrong:
        reader.problem(path, str(wrong))
        return 0, 0
    devices = [process[0] for process in processes]
    if any(len(process) > 1 for process in processes) or devices != list(range(devices[0], devices[-1] + 1)):
        reader.problem(path, f"{value!r} is no contiguous range with one process on each device, as a plan needs.")
    return devices[0], devices[-1]
