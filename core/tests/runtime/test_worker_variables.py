"""The variables of a worker from four levels, and which interpreter and rank of a node are accepted."""

from __future__ import annotations

import itertools
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from plugrl.errors import ConfigError, RuntimeTimeout
from plugrl.runtime import node_facts
from plugrl.runtime.node_facts import NODE_RANK, NodeFacts, facts_here, interpreter_problem, order_by_rank
from plugrl.runtime.placement import Layout, Node, NodeEnvironment, NodeGroup, PlacementError
from plugrl.runtime.placement.environment import (
    PATH_VARIABLES,
    changed_since,
    merge_mode,
    merge_variables,
    worker_variables,
)
from plugrl.runtime.process_environment import ProcessEnvironments


def test_the_highest_level_that_sets_a_variable_wins() -> None:
    names = ("node", "changed", "group", "worker")
    for present in itertools.product((False, True), repeat=4):
        node, changed, group, worker = (
            {"V": name} if is_there else {} for name, is_there in zip(names, present, strict=True)
        )
        merged = {**node, **worker_variables(node, changed, group, worker)}
        highest = [name for name, is_there in zip(names, present, strict=True) if is_there]
        assert merged == ({"V": highest[-1]} if highest else {}), present


@pytest.mark.parametrize("name", sorted(PATH_VARIABLES))
def test_search_paths_have_the_entries_of_the_higher_level_first(name: str) -> None:
    levels = ({name: "/n::/same"}, {name: "/d"}, {name: "/g:/same"}, {name: "/w:"})
    assert worker_variables(*levels) == {name: "/w:/g:/same:/d:/n"}
    assert worker_variables(*levels, mode="override") == {name: "/w:"}


def test_merging_a_path_keeps_every_entry_once_in_order() -> None:
    numbers = random.Random(1)
    for _ in range(200):
        base, incoming = ([numbers.choice("abcde") for _ in range(numbers.randint(0, 5))] for _ in range(2))
        merged = merge_variables({"PATH": ":".join(base)}, {"PATH": ":".join(incoming)})["PATH"]
        assert [entry for entry in merged.split(":") if entry] == list(dict.fromkeys(incoming + base))


def test_other_variables_are_replaced_even_where_they_look_like_paths() -> None:
    assert merge_variables({"DATA": "/a:/b"}, {"DATA": "/c"}) == {"DATA": "/c"}


def test_the_mode_is_append_unless_it_is_said_and_nothing_else() -> None:
    assert [merge_mode({"PLUGRL_PATH_ENV_MERGE_MODE": value}) for value in ("", "append", "override")] == [
        "append", "append", "override",
    ]  # fmt: skip
    assert merge_mode({}) == "append"
    with pytest.raises(ConfigError, match='PLUGRL_PATH_ENV_MERGE_MODE="prepend"'):
        merge_mode({"PLUGRL_PATH_ENV_MERGE_MODE": "prepend"})


def test_what_belongs_to_one_process_does_not_follow_the_driver() -> None:
    now = {"KEPT": "1", "NEW": "2", "ALTERED": "3", "RANK": "0", "WORLD_SIZE": "2", "RAY_ADDRESS": "x", "PWD": "/"}
    assert changed_since({"KEPT": "1", "ALTERED": "0", "GONE": "1"}, now) == {"NEW": "2", "ALTERED": "3"}


def environments(**keys: Any) -> ProcessEnvironments:
    group = NodeGroup(
        label="g", node_ranks=(0,), resources=(),
        environments={0: NodeEnvironment(variables={"A": "group"}, interpreter="/opt/my env/python")},
    )  # fmt: skip
    layout = Layout((Node(devices=1, name="first"),), (group,))
    common: dict[str, Any] = {"layout": layout, "nodes": [NodeFacts()], "driver": dict(os.environ), "job": {}}
    return ProcessEnvironments(**{**common, **keys})


def test_a_worker_without_anything_of_its_own_has_the_environment_of_the_job() -> None:
    assert environments().runtime_env("cluster", 0, {}) == {}


def test_what_the_driver_sets_later_reaches_workers_unless_the_job_or_the_mask_sets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = environments(job={"OMP_NUM_THREADS": "1"}, mask="BOARD_VISIBLE_DEVICES")
    for name in ("OMP_NUM_THREADS", "BOARD_VISIBLE_DEVICES", "A", "LATER"):
        monkeypatch.setenv(name, "driver")
    assert found.runtime_env("cluster", 0, {}) == {"env_vars": {"A": "driver", "LATER": "driver"}}
    assert found.runtime_env("g", 0, {"B": "own"}) == {
        "env_vars": {"A": "group", "LATER": "driver", "B": "own"}, "py_executable": "'/opt/my env/python'",
    }  # fmt: skip


def test_interpreters_and_masks_are_checked_before_workers_start() -> None:
    facts = NodeFacts(interpreters={"/opt/my env/python": "there is no such file"})
    with pytest.raises(PlacementError) as caught:
        environments(nodes=[facts], mask="A").check()
    assert [code for _, code, _ in caught.value.errors] == ["interpreter", "mask"]
    assert "node group 'g', node 0 (first): /opt/my env/python" in str(caught.value)
    environments().check()


def test_why_an_interpreter_cannot_run_workers(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\necho no module >&2\nexit 3\n")
    assert interpreter_problem(str(tmp_path / "missing")) == "there is no such file"
    assert interpreter_problem(str(plain)) == "it cannot be executed"
    plain.chmod(0o755)
    assert interpreter_problem(str(plain)) == "it has not the packages of a worker: no module"
    plain.write_text('#!/bin/sh\necho \'["3.2", "1.0", "9"]\'\n')
    assert "Python 3.2 instead of 3." in interpreter_problem(str(plain))
    assert facts_here({"A": "1"}, [sys.executable]) == NodeFacts(
        variables={"A": "1"}, interpreters={sys.executable: ""}
    )


def ordered(*ranks: str | None) -> list[str]:
    nodes = [{"NodeID": name, "NodeManagerAddress": "ip", "NodeName": name} for name in "abc"[: len(ranks)]]
    facts = {
        node["NodeID"]: NodeFacts(variables={} if rank is None else {NODE_RANK: rank})
        for node, rank in zip(nodes, ranks, strict=True)
    }
    return [node["NodeID"] for node in order_by_rank(nodes, facts)]


def test_nodes_are_ordered_by_the_rank_they_have_all_or_none() -> None:
    assert ordered(None, None, None) == ["a", "b", "c"]
    assert ordered("2", "0", "1") == ["b", "c", "a"]
    for wrong in (("0", None), ("0", "0"), ("0", "2"), ("1", "2"), ("0", "x")):
        with pytest.raises(ConfigError, match=f"{NODE_RANK} must be set on every node or on none.*a={wrong[0]}"):
            ordered(*wrong)


def test_waiting_for_nodes_says_how_many_have_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = [{"Alive": True}, {"Alive": False}, {"Alive": True}]
    monkeypatch.setattr(node_facts.ray, "nodes", lambda: alive)
    with pytest.raises(RuntimeTimeout, match=r"cluster\.num_nodes: 2 of 3 nodes have joined within 0\.1 s"):
        node_facts.wait_for_nodes(3, 0.1)
    node_facts.wait_for_nodes(2, 0)
