"""What the table of a shortage says: the likely cause on each node, and one thing to do."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.platforms.cpu import CpuPlatform
from plugrl.platforms.devices import DeviceError
from plugrl.runtime.node_view import NodeView
from plugrl.runtime.nodes import NodeSlots, assign_seats, device_ids
from plugrl.runtime.shortage import Asked, NodeRow, explain

ADDRESS = "10.0.0.1:6379"
MASK = "ACME_VISIBLE_DEVICES"


class Acme(CpuPlatform):
    """A platform with a mask and a resource."""

    def visible_devices_envvar(self) -> str:
        """The mask."""
        return MASK

    def ray_resource_name(self) -> str:
        """The resource."""
        return "ACME"


def asked(**members: Any) -> Asked:
    """Eight devices are wanted of a cluster."""
    given: dict[str, Any] = {"resource": "ACME", "wanted": 8, "platform": "acme", "variable": MASK, "address": ADDRESS}
    return Asked(**{**given, **members})


def row(**members: Any) -> NodeRow:
    """A node; members of its view may be given beside its own."""
    own = {name: members.pop(name) for name in list(members) if name in NodeRow.__dataclass_fields__}
    return NodeRow(**{"label": "n1", **own}, view=NodeView(**members))


@pytest.mark.parametrize(
    ("node", "cause", "fix"),
    [
        (row(available=True, count=8), "8 devices, but was started without the resource ACME",
         "ray start --address=10.0.0.1:6379 --resources='{\"ACME\": 8}'"),
        (row(available=True, count=8, is_head=True), "without the resource", "ray start --head --resources="),
        (row(available=True, variables={MASK: ""}), f"{MASK} is empty there", f"Unset {MASK} on node n1"),
        (row(total=4, free=4, variables={MASK: "0,1,2,3"}), f"{MASK} shows 4 there", "list more devices"),
        (row(total=8, free=0), "other jobs hold them", "ray list actors --address=10.0.0.1:6379"),
        (row(total=8, free=0, holders=("actor", "rollout")), "held by this run's actor, rollout", "fewer devices"),
        (row(alive=False), "has left the cluster (stale)", "Start node n1 again"),
        (row(others=("OTHER",), reason="no board"), "of another kind: OTHER", "wrong one"),
        (row(variables={"VERL_PLATFORM": "other"}), "of another kind: VERL_PLATFORM=other", "wrong one"),
        (row(reason="no driver"), "platform acme finds no device: no driver", "wrong one, give the right address"),
        (row(error="it did not answer within 30 s"), "did not answer within 30 s", "Look at node n1"),
    ],
)  # fmt: skip
def test_each_cause_is_named_with_what_mends_it(node: NodeRow, cause: str, fix: str) -> None:
    text = explain(asked(), [node])
    assert cause in text and fix in text.splitlines()[-1]


def test_the_table_shows_what_ray_reports_and_the_variables_of_every_node() -> None:
    rows = [
        row(label="a (10.0.0.1)", total=8, free=2, variables={MASK: "0,1", "VERL_PLATFORM": "acme"}),
        row(label="10.0.0.2", available=True, count=4),
    ]
    head, titles, first, second, advice = explain(asked(), rows).splitlines()
    assert head == "8 ACME are wanted, Ray has 8 in all and 2 free."
    assert first.index("ACME") == second.index("ACME") == titles.index("asked")
    assert first.split()[2:6] == ["ACME", "8", "2", "none"] and f"{MASK}=0,1 VERL_PLATFORM=acme" in first
    assert second.split()[1:5] == ["ACME", "0", "0", "4"] and f"{MASK} unset" in second
    assert advice.endswith(".")


def test_a_graphics_resource_of_ray_has_its_own_option_and_a_local_ray_no_address() -> None:
    assert "--num-gpus=4`" in explain(asked(resource="GPU"), [row(available=True, count=4)])
    assert "component_placement.actor=0" in explain(asked(address=None), [row(total=2, free=2)])
    assert "raise `cluster.start_timeout_s`" in explain(asked(wanted=2), [row(total=2, free=2)])


NODE = NodeSlots(node_id="x", ip="10.0.0.1", devices=2, name="first")


def test_devices_of_a_node_are_the_first_of_its_own_mask() -> None:
    assert device_ids(Acme(), NODE, NodeView(variables={MASK: "5, GPU-ab,7"})) == ("5", "GPU-ab")
    assert device_ids(Acme(), NODE, NodeView(count=8)) == device_ids(Acme(), NODE, NodeView()) == ("0", "1")


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (NodeView(variables={MASK: ""}), ("first (10.0.0.1)", f"{MASK} is empty")),
        (NodeView(variables={MASK: "5"}), ("first", "2 ACME", f"{MASK}=5 names 1")),
        (NodeView(count=1), ("first", "2 ACME", "finds 1")),
        (NodeView(error="it did not answer within 9 s"), ("first", "did not answer")),
    ],
)
def test_a_node_that_was_told_of_more_devices_than_it_has_is_an_error(view: NodeView, words: tuple[str, ...]) -> None:
    with pytest.raises(DeviceError) as caught:
        device_ids(Acme(), NODE, view)
    assert all(word in str(caught.value) for word in words)


def test_seats_carry_the_physical_id_and_may_be_shared_or_not() -> None:
    nodes = [
        NodeSlots(node_id="a", ip="10.0.0.1", devices=2, device_ids=("2", "5")),
        NodeSlots(node_id="b", ip="10.0.0.2", devices=1, device_ids=("GPU-ab",)),
        NodeSlots(node_id="c", ip="10.0.0.3", devices=1),
    ]
    seats = assign_seats([1, 1, 2, 3], nodes, shared=True)
    assert [(seat.node.node_id, seat.device_id, seat.local_rank) for seat in seats] == [
        ("a", "5", 0), ("a", "5", 1), ("b", "GPU-ab", 0), ("c", None, 0),
    ]  # fmt: skip
    with pytest.raises(DeviceError, match=r"Ranks 0, 1 on node 10\.0\.0\.1 all hold device 1"):
        assign_seats([1, 1], nodes, shared=False)
    with pytest.raises(DeviceError, match="Device 4 does not exist: the cluster has 4"):
        assign_seats([4], nodes, shared=True)
