"""Placements: the table of the runtime reference and the rules behind it, groups, strategies, the one form."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import pytest

from plugrl.config.schema import ClusterConfig
from plugrl.runtime.placement import (
    FlexiblePlacementStrategy,
    Layout,
    Node,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementError,
    format_placement,
    parse_placement,
    place,
    resolve_placement,
)

MAPPINGS = [
    ("0-7", 8, [[d] for d in range(8)]),
    ("all", 8, [[d] for d in range(8)]),
    ("ALL", 3, [[0], [1], [2]]),
    ("0", 8, [[0]]),
    (0, 8, [[0]]),
    ((0, 2), 8, [[0], [2]]),
    ("0-3:0-7", 8, [[0], [0], [1], [1], [2], [2], [3], [3]]),
    (" 0 - 3 : 0 - 7 ", 8, [[0], [0], [1], [1], [2], [2], [3], [3]]),
    ("0-3:0-1", 8, [[0, 1], [2, 3]]),
    ("0-7:0", 8, [list(range(8))]),
    ("0-1,4-5", 8, [[0], [1], [4], [5]]),
    ("0-3,4-7:4-5", 8, [[0], [1], [2], [3], [4, 5], [6, 7]]),
    (
        "0-1:0-3,3-5,7-10:7-14",
        16,
        [[0], [0], [1], [1], [3], [4], [5], [7], [7], [8], [8], [9], [9], [10], [10]],
    ),
    ([[2, 0], [1, 3]], 4, [[0, 2], [1, 3]]),
]

ERRORS: list[tuple[Any, str]] = [
    (True, "type"),
    (1.5, "type"),
    (None, "type"),
    ([0, True], "type"),
    ([[0], [-1]], "type"),
    (-1, "syntax"),
    ("", "empty"),
    ([], "empty"),
    ([[0], []], "empty"),
    ("0-1,,2", "empty"),
    ("a-b,,2", "empty"),
    ("0-3:", "empty"),
    (":0", "empty"),
    ("a-b", "syntax"),
    ("0-1:0:1", "syntax"),
    ("9" * 5000, "syntax"),
    ("٣", "syntax"),
    ("3-0", "descending"),
    ("9-6", "descending"),
    ("6-9", "out_of_range"),
    ([[0], [8]], "out_of_range"),
    ("0-3,3-5", "duplicate"),
    ("0-3,2-5", "duplicate"),
    ("all,all", "duplicate"),
    ([[0, 0]], "duplicate"),
    ("0,2,1", "not_ascending"),
    ("0-3:all", "process_all"),
    ("0-3:4-7", "process_gap"),
    ("0-3:1", "process_gap"),
    ("0,1:2", "process_gap"),
    ("0-3:3-0", "descending"),
    ("0-3:0-2", "indivisible"),
]


def cluster(placement: dict[str, Any], *groups: dict[str, Any], **keys: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({"component_placement": placement, "node_groups": groups, **keys})


def placed(config: ClusterConfig, nodes: int = 2, devices: int = 4, **defaults: Any) -> Placement:
    components = {name.strip(): 0 for key in config.component_placement for name in key.split(",")}
    return place(config, {**components, **defaults}, [Node(devices=devices, device_type="slot")] * nodes)


def mistakes(config: ClusterConfig, nodes: int = 2, devices: int = 4) -> list[tuple[str, str]]:
    with pytest.raises(PlacementError) as caught:
        placed(config, nodes, devices)
    assert str(caught.value) == "\n".join(f"{path}: {message}" for path, _, message in caught.value.errors)
    return [(path.removeprefix("cluster."), code) for path, code, _ in caught.value.errors]


# --------------------------------------------------------------------- grammar
@pytest.mark.parametrize(("value", "devices", "expected"), MAPPINGS)
def test_mapping(value: Any, devices: int, expected: list[list[int]]) -> None:
    processes = parse_placement(value, devices)
    assert [list(process) for process in processes] == expected
    assert parse_placement(format_placement(processes), devices) == processes


@pytest.mark.parametrize(("value", "code"), ERRORS)
def test_error_code(value: Any, code: str) -> None:
    with pytest.raises(PlacementError) as caught:
        resolve_placement({"actor": value}, {"actor": "all"}, 8)
    ((path, found, message),) = caught.value.errors
    assert (path, found) == ("cluster.component_placement.actor", code)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("text", ["0-7", "0", "0-3:0-7", "0-7:0", "0-1:0-3,3-5,7-10:7-14", "0-3,4-7:4-5", "0:0-2,2"])
def test_a_text_in_its_shortest_form_comes_back_as_it_was(text: str) -> None:
    assert format_placement(parse_placement(text, 16)) == text


def test_whatever_processes_there_are_some_value_stands_for_them() -> None:
    numbers = random.Random(5)
    for _ in range(200):
        processes = tuple(
            tuple(sorted(numbers.sample(range(6), numbers.randint(1, 3)))) for _ in range(numbers.randint(1, 5))
        )
        assert parse_placement(format_placement(processes), 6) == processes


def test_a_process_holds_all_resources_of_its_segment_in_every_ratio() -> None:
    for resources, processes in itertools.product(range(1, 9), repeat=2):
        value = f"0-{resources - 1}:0-{processes - 1}"
        if resources % processes and processes % resources:
            with pytest.raises(PlacementError, match="do not divide"):
                resolve_placement({}, {"actor": value}, resources)
            continue
        found = parse_placement(value, resources)
        assert len(found) == processes
        assert sorted(item for process in found for item in process) == sorted(
            list(range(resources)) * max(1, processes // resources)
        )


# --------------------------------------------------------------------- devices of workers
def test_components_share_a_key_and_the_rest_gets_its_default() -> None:
    resolved = resolve_placement({"actor, ref": "0-1"}, {"actor": "all", "ref": "all", "rollout": 2}, 4)
    assert resolved == {"actor": (0, 1), "ref": (0, 1), "rollout": (2,)}


def test_all_mistakes_come_together() -> None:
    with pytest.raises(PlacementError) as caught:
        resolve_placement({"actro": 0, "actor,ref": "9", "ref": 1}, {"actor": 0, "ref": 0}, 4)
    codes = [code for _, code, _ in caught.value.errors]
    assert sorted(codes) == ["duplicate_component", "out_of_range", "unknown_component"]
    assert "Did you mean 'actor'?" in str(caught.value)
    assert caught.value.wanted == pickle.loads(pickle.dumps(caught.value)).wanted == 10


def test_several_devices_for_one_worker_are_refused() -> None:
    with pytest.raises(PlacementError, match="rank 0 would hold devices 0, 1"):
        resolve_placement({"actor": "0-1:0"}, {"actor": 0}, 4)


def test_a_worker_without_a_device_is_refused_where_it_needs_one() -> None:
    config = cluster({"actor": {"node_group": "node", "placement": 0}})
    with pytest.raises(PlacementError, match="rank 0 would hold node 0"):
        place(config, {"actor": 0}, [Node(devices=2)], one_device=["actor"])


# --------------------------------------------------------------------- nodes and groups
def test_processes_on_two_nodes() -> None:
    first, second = placed(cluster({"actor": "0-7:0-1"})).components["actor"].processes
    assert (first.devices, second.devices) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (second.node_rank, second.placement_node_rank, second.local_devices) == (1, 1, (0, 1, 2, 3))
    assert mistakes(cluster({"actor": "0-7:0"})) == [("component_placement.actor", "cross_node")]


def test_ranks_are_counted_on_their_node() -> None:
    placement = placed(cluster({"actor": "1-2,5-7"}, {"label": "last", "node_ranks": 1}), nodes=3, devices=3)
    rows = [
        (p.rank, p.node_rank, p.placement_node_rank, p.local_rank, p.local_world_size, p.local_devices)
        for p in placement.components["actor"].processes
    ]
    assert rows == [
        (0, 0, 0, 0, 2, (1,)), (1, 0, 0, 1, 2, (2,)), (2, 1, 1, 0, 1, (2,)), (3, 2, 2, 0, 2, (0,)),
        (4, 2, 2, 1, 2, (1,)),
    ]  # fmt: skip


@pytest.mark.parametrize("labels", ["b,a", " b , a ", ["b", "a"], ("b", "a")])
def test_resources_run_on_across_the_groups_in_their_order(labels: Any) -> None:
    config = cluster(
        {"actor": {"node_group": labels, "placement": "0-5"}},
        {"label": "a", "node_ranks": 0},
        {"label": "b", "node_ranks": "1-2"},
    )
    placement = placed(config, nodes=3, devices=2)
    assert placement.components["actor"].one_device_each == (2, 3, 4, 5, 0, 1)
    assert [process.node_group for process in placement.components["actor"].processes] == [*"bbbbaa"]


def test_node_ranks_of_a_group_may_be_written_in_every_way() -> None:
    for value, expected in (("0-1,3", [0, 1, 3]), ("all", [0, 1, 2, 3]), (2, [2]), ([0, 2], [0, 2]), ("1", [1])):
        config = cluster({"actor": {"node_group": "g", "placement": "all"}}, {"label": "g", "node_ranks": value})
        processes = placed(config, nodes=4, devices=1).components["actor"].processes
        assert [process.node_rank for process in processes] == expected, value


def test_nodes_are_the_resources_where_there_are_no_devices_or_none_count() -> None:
    value = {"node_group": "g", "placement": "0-1:0-3"}
    config = cluster({"env": value}, {"label": "g", "node_ranks": "0-1"})
    for found in (
        placed(config, devices=0),
        placed(cluster({"env": value}, {"label": "g", "node_ranks": "0-1", "ignore_hardware": True})),
        placed(cluster({"env": {"node_group": "node", "placement": "0-1:0-3"}})),
    ):
        processes = found.components["env"].processes
        assert [(p.node_rank, p.kind, p.devices, p.local_rank) for p in processes] == [
            (0, "node", (), 0), (0, "node", (), 1), (1, "node", (), 0), (1, "node", (), 1),
        ]  # fmt: skip


HARDWARE = {"type": "virtual", "configs": [{"node_rank": 1, "name": "left"}, {"node_rank": 1, "name": "right"}]}


def test_a_group_with_hardware_is_placed_by_its_units() -> None:
    group = {"label": "arms", "node_ranks": 1, "hardware": HARDWARE}
    config = cluster({"env": {"node_group": "arms", "placement": "0-1:0-3"}}, group)
    processes = placed(config).components["env"].processes
    assert [process.resources[0].unit.name for process in processes] == ["left", "left", "right", "right"]  # type: ignore[union-attr]
    assert {(p.kind, p.type, p.node_rank, p.devices) for p in processes} == {("hardware", "virtual", 1, ())}
    ignored = cluster({"env": {"node_group": "arms", "placement": "all"}}, {**group, "ignore_hardware": True})
    assert [p.kind for p in placed(ignored).components["env"].processes] == ["node"]


def test_resources_of_two_kinds_make_no_process() -> None:
    group = {"label": "arms", "node_ranks": 1, "hardware": HARDWARE}
    chips = {"label": "chips", "node_ranks": 1}
    value = {"node_group": "arms,chips", "placement": "1-2:0"}
    assert mistakes(cluster({"env": value}, group, chips)) == [("component_placement.env.placement", "mixed_hardware")]


def test_groups_may_overlap_but_not_in_one_placement() -> None:
    groups: list[dict[str, Any]] = [{"label": "a", "node_ranks": "0-1"}, {"label": "b", "node_ranks": 1}]
    value = {"node_group": "b", "placement": 0}
    assert placed(cluster({"x": value}, *groups)).components["x"].one_device_each == (4,)
    for labels in ("a,b", "a,a"):
        twice = cluster({"x": {"node_group": labels, "placement": 0}}, *groups)
        assert mistakes(twice) == [("component_placement.x.node_group", "duplicate")]


def test_what_a_node_gets_in_its_environment() -> None:
    config = cluster(
        {"actor": {"node_group": "g", "placement": "all"}},
        {
            "label": "g", "node_ranks": "all",
            "env_configs": [
                {"node_ranks": 0, "env_vars": [{"A": "1"}, {"B": 2}], "python_interpreter_path": "/opt/python"},
                {"node_ranks": 1, "env_vars": [{"A": "3"}]},
            ],
        },
    )  # fmt: skip
    placement = placed(config, devices=1)
    first, second = map(placement.environment, placement.components["actor"].processes)
    assert (dict(first.variables), first.interpreter) == ({"A": "1", "B": "2"}, "/opt/python")
    assert (dict(second.variables), second.interpreter) == ({"A": "3"}, "")


GROUP_ERRORS: list[tuple[dict[str, Any], str, str]] = [
    ({"label": "cluster"}, "label", "reserved_label"),
    ({"label": "node"}, "label", "reserved_label"),
    ({"label": "a,b"}, "label", "label"),
    ({"node_ranks": "0-"}, "node_ranks", "syntax"),
    ({"node_ranks": "0:0-1"}, "node_ranks", "syntax"),
    ({"node_ranks": "1-0"}, "node_ranks", "descending"),
    ({"node_ranks": 2}, "node_ranks", "out_of_range"),
    ({"node_ranks": ""}, "node_ranks", "empty"),
    ({"env_configs": [{"env_vars": [{"A": "1", "B": "2"}]}]}, "env_configs[0].env_vars[0]", "env_var"),
    ({"env_configs": [{"env_vars": [{}]}]}, "env_configs[0].env_vars[0]", "env_var"),
    ({"env_configs": [{"env_vars": [{"A": "1"}, {"A": "2"}]}]}, "env_configs[0].env_vars[1]", "duplicate"),
    ({"env_configs": [{"node_ranks": "x"}]}, "env_configs[0].node_ranks", "syntax"),
    ({"node_ranks": 0, "env_configs": [{"node_ranks": 1}]}, "env_configs[0].node_ranks", "outside_group"),
    ({"env_configs": [{}, {"node_ranks": 1}]}, "env_configs[1].node_ranks", "duplicate"),
    ({"hardware": {"type": "virtuel"}}, "hardware.type", "unknown_hardware"),
    ({"hardware": [HARDWARE, HARDWARE]}, "hardware", "several_hardware"),
    ({"hardware": {"type": "virtual", "configs": [{"node_rank": 1}] * 2}}, "hardware.configs[1]", "duplicate_hardware"),
    ({"node_ranks": 0, "hardware": HARDWARE}, "hardware.configs[0].node_rank", "outside_group"),
    ({"hardware": {"type": "virtual", "configs": [{"node_rank": "x"}]}}, "hardware.configs[0].node_rank",
     "hardware_config"),
    ({"hardware": {"type": "virtual", "configs": [{"node_rank": 0, "ip": 1}]}}, "hardware.configs[0].ip",
     "hardware_config"),
    ({"hardware": {"type": "virtual"}}, "hardware.configs", "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("group", "path", "code"), GROUP_ERRORS)
def test_mistakes_in_a_group(group: dict[str, Any], path: str, code: str) -> None:
    config = cluster({"actor": 0}, {"label": "g", "node_ranks": "0-1", **group})
    assert mistakes(config)[0] == (f"node_groups[0].{path}", code)


def test_independent_mistakes_are_reported_together() -> None:
    config = cluster(
        {
            "actor": {"node_group": "bgi", "placement": "1-0", "palcement": 1},
            "rollout": {"node_group": "broken", "placement": "0-1:1"},
            "critic": {"node_group": True, "placement": 0},
            "env": {"node_group": "big"},
            "ref": {"node_group": "big", "placement": "4"},
        },
        {"label": "big", "node_ranks": 0},
        {"label": "big", "node_ranks": 1},
        {"label": "broken", "node_ranks": "7"},
        num_nodes=3,
    )
    assert sorted(mistakes(config)) == sorted(
        [
            ("num_nodes", "num_nodes"),
            ("node_groups[1].label", "duplicate_group"),
            ("node_groups[2].node_ranks", "out_of_range"),
            ("component_placement.actor.palcement", "unknown_key"),
            ("component_placement.actor.node_group", "unknown_group"),
            ("component_placement.actor.placement", "descending"),
            ("component_placement.rollout.placement", "process_gap"),
            ("component_placement.critic.node_group", "type"),
            ("component_placement.env", "empty"),
            ("component_placement.ref.placement", "out_of_range"),
        ]
    )


# --------------------------------------------------------------------- strategies
def layout(nodes: int, devices: int) -> Layout:
    return Layout((Node(devices=devices, device_type="slot"),) * nodes)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (PackedPlacementStrategy(0, 7, 2, 2), [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (PackedPlacementStrategy(0, 7), [(d,) for d in range(8)]),
        (PackedPlacementStrategy(2, 7, 3), [(2, 3, 4), (5, 6, 7)]),
        (PackedPlacementStrategy(4, 7, 2, 2), [(4, 6), (5, 7)]),
        (FlexiblePlacementStrategy([[3, 1], [0]]), [(1, 3), (0,)]),
    ],
)
def test_strategies(strategy: Any, expected: list[tuple[int, ...]]) -> None:
    component = strategy.place(layout(1, 8))
    assert list(component.devices) == expected
    again = place(cluster({"actor": component.to_value()}), {"actor": 0}, [Node(devices=8, device_type="slot")])
    assert again.components["actor"] == component


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        (PackedPlacementStrategy(0, 5, 2), "cross_node"),  # 2 nodes with 3 devices: device 3 is another node's
        (PackedPlacementStrategy(0, 4, 2), "indivisible"),
        (PackedPlacementStrategy(0, 5, 2, 2), "indivisible"),
        (PackedPlacementStrategy(3, 1), "descending"),
        (PackedPlacementStrategy(0, 5, 0), "range"),
        (PackedPlacementStrategy(0, 6), "out_of_range"),
        (PackedPlacementStrategy(0, 1, node_group="nowhere"), "unknown_group"),
        (FlexiblePlacementStrategy([]), "empty"),
        (FlexiblePlacementStrategy([[0], []]), "empty"),
        (FlexiblePlacementStrategy([[0, 0]]), "duplicate"),
        (FlexiblePlacementStrategy([[2, 3]]), "cross_node"),
        (FlexiblePlacementStrategy([[-1]]), "out_of_range"),
        (NodePlacementStrategy([2]), "out_of_range"),
        (NodePlacementStrategy([]), "empty"),
    ],
)
def test_what_strategies_refuse(strategy: Any, code: str) -> None:
    with pytest.raises(PlacementError) as caught:
        strategy.place(layout(2, 3))
    assert [(path, found) for path, found, _ in caught.value.errors] == [(type(strategy).__name__, code)]


def test_isolation_decides_what_a_process_sees() -> None:
    alone = PackedPlacementStrategy(3, 5).place(layout(2, 3)).processes
    assert [process.visible for process in alone] == [(0,), (1,), (2,)] and all(p.isolated for p in alone)
    open_ = PackedPlacementStrategy(3, 5, isolate=False).place(layout(2, 3)).processes
    assert [(p.visible, p.local_devices) for p in open_] == [((0, 1, 2), (0,)), ((0, 1, 2), (1,)), ((0, 1, 2), (2,))]


def test_a_node_strategy_gives_no_device() -> None:
    processes = NodePlacementStrategy([1, 0, 1]).place(layout(2, 3)).processes
    assert [(p.node_rank, p.local_rank, p.devices, p.visible) for p in processes] == [
        (1, 0, (), ()), (0, 0, (), ()), (1, 1, (), ()),
    ]  # fmt: skip


# --------------------------------------------------------------------- the one form
def test_a_placement_written_to_the_configuration_is_read_as_itself() -> None:
    groups: list[dict[str, Any]] = [
        {"label": "a", "node_ranks": "0-1"},
        {"label": "arms", "node_ranks": 1, "hardware": HARDWARE},
    ]
    values = {
        "actor": "all",
        "rollout": {"node_group": "a", "placement": "0-7:0-1"},
        "env": {"node_group": ["arms", "a"], "placement": "0-1,6-7"},
        "ref,critic": [0, 5],
        "teacher": {"node_group": "cluster", "placement": [[5, 4], [0, 2]]},
    }
    config = cluster(values, *groups)
    form = placed(config)
    again = placed(cluster(form.to_config(), *groups))
    assert again.components == form.components
    assert again.to_config() == form.to_config()
    assert form.to_config()["teacher"] == [[4, 5], [0, 2]]
