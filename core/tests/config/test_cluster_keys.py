"""`cluster.node_groups` in the configuration: a mistake inside a list is named where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.config import RunConfig, load_config
from plugrl.errors import ConfigError

from .conftest import BASE

pytestmark = pytest.mark.usefixtures("installed")


def load(write: Any, *overrides: str) -> RunConfig:
    return load_config(write(BASE), overrides)


def test_placements_and_groups_are_read_as_they_are_written(write: Any) -> None:
    cluster = load(
        write,
        "cluster.component_placement={'actor,ref': 0-1, rollout: {node_group: [a, b], placement: 0}}",
        "cluster.node_groups=[{label: a, node_ranks: 0-1, hardware: {type: virtual, configs: [{node_rank: 1}]}}]",
        "cluster.component_placement.critic=[0, 2]",
    ).cluster
    assert cluster.component_placement == {
        "actor,ref": "0-1", "rollout": {"node_group": ["a", "b"], "placement": 0}, "critic": [0, 2],
    }  # fmt: skip
    assert cluster.node_groups[0].hardware[0].configs == ({"node_rank": 1},)


@pytest.mark.parametrize(
    ("groups", "messages"),
    [
        ("[{lable: a, node_ranks: 0}]", ["[0].label: must be given", "[0].lable: unknown key"]),
        ("[{label: a, node_ranks: 0}, {label: b}]", ["[1].node_ranks: must be given"]),
        ("[{label: a, node_ranks: true}]", ["[0].node_ranks: must be a number, not True"]),
        ("[{label: a, node_ranks: {}}]", ["[0].node_ranks: must be a text or a whole number or a list, not {}"]),
        ("[{label: a, node_ranks: 0, env_configs: [{env_vars: {A: 1}}]}]", ["[0].env_configs[0].env_vars: must be a"]),
        (
            "[{label: a, node_ranks: 0, env_configs: [{env_vars: [{B: 1}, {A: [1]}]}]}]",
            ["[0].env_configs[0].env_vars[1].A: must be a text, not [1]"],
        ),
        ("{label: a}", [": must be a list"]),
    ],
)
def test_a_mistake_in_a_list_is_named_where_it_stands(write: Any, groups: str, messages: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write, f"cluster.node_groups={groups}")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert line.startswith(f"cluster.node_groups{message}") and line.endswith("(command line)")


def test_a_number_of_nodes_is_positive(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.num_nodes: must be at least 1, not 0"):
        load(write, "cluster.num_nodes=0")
