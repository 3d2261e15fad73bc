"""The placement grammar: the table of the runtime reference and the rules behind it."""

import pickle

import pytest

from plugrl.runtime.placement import PlacementError, parse_placement, resolve_placement

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
]

ERRORS = [
    (True, "type"),
    (1.5, "type"),
    ("", "empty"),
    ("0-1,,2", "empty"),
    ("0-3:", "empty"),
    ("a-b", "syntax"),
    ("0-1:0:1", "syntax"),
    ("3-0", "descending"),
    ("6-9", "out_of_range"),
    ("0-3,3-5", "duplicate"),
    ("0,2,1", "not_ascending"),
    ("0-3:all", "process_all"),
    ("0-3:4-7", "process_gap"),
    ("0-3:1", "process_gap"),
    ("0-3:3-0", "descending"),
    ("0-3:0-2", "indivisible"),
]


@pytest.mark.parametrize(("value", "devices", "expected"), MAPPINGS)
def test_mapping(value, devices, expected):
    assert [list(process) for process in parse_placement(value, devices)] == expected


@pytest.mark.parametrize(("value", "code"), ERRORS)
def test_error_code(value, code):
    with pytest.raises(PlacementError) as caught:
        resolve_placement({"actor": value}, {"actor": "all"}, 8)
    ((path, found, message),) = caught.value.errors
    assert (path, found) == ("cluster.component_placement.actor", code)
    assert str(caught.value) == f"{path}: {message}"


def test_components_share_a_key_and_the_rest_gets_its_default():
    placed = resolve_placement({"actor, ref": "0-1"}, {"actor": "all", "ref": "all", "rollout": 2}, 4)
    assert placed == {"actor": (0, 1), "ref": (0, 1), "rollout": (2,)}


def test_all_mistakes_come_together():
    with pytest.raises(PlacementError) as caught:
        resolve_placement({"actro": 0, "actor,ref": "9", "ref": 1}, {"actor": 0, "ref": 0}, 4)
    codes = [code for _, code, _ in caught.value.errors]
    assert sorted(codes) == ["duplicate_component", "out_of_range", "unknown_component"]
    assert "Did you mean 'actor'?" in str(caught.value)
    assert caught.value.wanted == pickle.loads(pickle.dumps(caught.value)).wanted == 10


def test_several_devices_for_one_worker_are_refused():
    with pytest.raises(PlacementError, match="rank 0 would hold devices 0, 1"):
        resolve_placement({"actor": "0-1:0"}, {"actor": 0}, 4)
