"""Placement on a session's devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.runners.components import explaining_shortage
from plugrl.runtime import PlacementError, RaySession, resolve_placement


def session(resource: str) -> RaySession:
    """A session whose platform has a Ray resource, or none, and which explains any lack."""
    made: Any = SimpleNamespace(
        platform=SimpleNamespace(ray_resource_name=lambda: resource), shortage=lambda wanted: f"table of {wanted}"
    )
    return cast(RaySession, made)


@pytest.mark.parametrize(
    ("resource", "actor", "table"), [("ACME", "0-7", True), ("", "0-7", False), ("ACME", "x", False)]
)
def test_a_placement_on_missing_devices_is_explained_by_node(resource: str, actor: str, table: bool) -> None:
    with pytest.raises(PlacementError) as caught, explaining_shortage(session(resource)):
        resolve_placement({"actor": actor, "rollout": "1-0"}, {"actor": 0, "rollout": 0}, 2)
    assert len(caught.value.errors) == 2
    assert str(caught.value).endswith("\ntable of 8") == table
