"""The last step from a data set's actions to an environment's."""

from __future__ import annotations

import pytest
import torch

from plugrl.errors import ConfigError
from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.action_transforms import TRANSFORMS, action_transform

NAMES = {
    ("maniskill", "widowx_bridge"): "widowx",
    ("libero", None): "libero",
    ("calvin", None): "calvin",
    ("metaworld", None): "metaworld",
    ("maniskill", "panda-ee-dpos"): "none",
}
"""What is called by the environment and the robot in the reference."""


@pytest.mark.parametrize("case", cases("post_process_actions"))
def test_actions_become_those_of_the_environment(case: Case) -> None:
    name = NAMES[case.given["env"], case.given.get("policy")]
    scale = case.given.get("scale", 1.0) if name == "widowx" else 1.0
    actions = torch.tensor(case.given["actions"])
    before = actions.clone()
    case.check({"actions": action_transform(name, scale)(actions)})
    assert torch.equal(actions, before), "the policy's own actions were changed"


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match='no "metawrold". Did you mean "metaworld"'):
        action_transform("metawrold")
    with pytest.raises(ConfigError, match="action_scale: 2.0 has no effect"):
        action_transform(None, 2.0)
    assert set(TRANSFORMS) == set(NAMES.values()), "every transform has a case"
