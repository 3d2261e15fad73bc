"""One scene of Meta-World: reset by a seed, stepped, and asked for its expert."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl_envs_metaworld.graphics import import_mujoco
from plugrl_envs_metaworld.tasks import VERSION

_NO_LIMIT = 2**31
_models: dict[str, Any] = {}
"""Description of a scene -> its compiled model. Compiling takes longer than ten episodes of reach."""


class Scene:
    """A Meta-World environment of one task.

    Args:
        task: its name without the version.
        reward_version: ``v1`` or ``v2``.
    """

    def __init__(self, task: str, reward_version: str) -> None:
        self.task = task
        self.sim = _build(task, reward_version)
        self.obs: NDArray[np.float64] = np.zeros(39)
        self._expert: Any = None

    def reset(self, seed: int) -> None:
        """Begin the episode that ``seed`` determines: object and goal positions are drawn from it."""
        self.sim.seed(seed)
        self.obs, _ = self.sim.reset()

    def step(self, action: NDArray[np.float32]) -> tuple[float, bool]:
        """Apply an action [4]: three shifts of the hand and the gripper's effort; return the reward and success."""
        self.obs, reward, _, _, info = self.sim.step(action)
        return float(reward), bool(info["success"])

    def expert(self) -> NDArray[np.float32]:
        """Return what the policy that comes with Meta-World does next, [4], within the bounds of actions."""
        if self._expert is None:
            from metaworld.policies import ENV_POLICY_MAP

            self._expert = ENV_POLICY_MAP[f"{self.task}{VERSION}"]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it wants more than the bounds allow
            action = self._expert.get_action(self.obs)
        return np.clip(action, -1.0, 1.0).astype(np.float32)


def _build(task: str, reward_version: str) -> Any:
    """Return Meta-World's environment, its goal observed and its positions drawn from its own seed."""
    import_mujoco(pictures=False)
    from metaworld.env_dict import ENV_CLS_MAP

    base = ENV_CLS_MAP[f"{task}{VERSION}"]
    kind = type(base.__name__, (base,), {"_initialize_simulation": _from_compiled, "__module__": base.__module__})
    sim = kind(reward_function_version=reward_version)
    sim.max_path_length = _NO_LIMIT  # the limit is the environment's
    sim.seeded_rand_vec = True
    sim._freeze_rand_vec = False
    sim._set_task_called = True
    sim._partially_observable = False
    vars(sim).pop("sawyer_observation_space", None)  # it was worked out without the goal
    return sim


def _from_compiled(sim: Any) -> tuple[Any, Any]:
    """Return model and data of a scene, the model a copy of one that was compiled before."""
    mujoco = import_mujoco(pictures=False)
    path = str(sim.fullpath)
    if path not in _models:
        _models[path] = mujoco.MjModel.from_xml_path(path)
    model = copy.copy(_models[path])
    return model, mujoco.MjData(model)
