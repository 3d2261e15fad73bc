"""The environment: scenes, physics, cameras and words behind the contract of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.episodes import SceneLabel, SceneOutcome
from plugrl.envs.episodic import EpisodicEnv
from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.expert import expert_actions
from plugrl_envs_tabletop.physics import advance, distance_to_go, solved
from plugrl_envs_tabletop.render import Camera, front_camera, main_camera, wrist_camera
from plugrl_envs_tabletop.scenes import Scenes, SceneSampler, instructions, labels

PICTURE_SIZE = 128
"""Side of the pictures for people, in pixels."""


class TabletopEnv(EpisodicEnv):
    """``config.num_envs`` tables that step together. Observations: ``main_images`` uint8 [N, S, S, 3] and what other
    cameras are on, ``states`` float32 [N, 5] (hand x, y, height, gripper closed, something held),
    ``task_descriptions``. Actions in [-1, 1] are clipped to it.
    """

    def __init__(self, config: TabletopConfig) -> None:
        super().__init__(
            config,
            action_dim=config.action_dim or config.needed_action_dim,
            max_episode_steps=config.usual_episode_steps,
        )
        self.config = config
        self._sampler = SceneSampler(config)
        self._scenes = self._sampler.draw(np.arange(config.num_envs, dtype=np.uint64))
        self._texts = instructions(self._scenes)
        self._rewarded = np.zeros(config.num_envs, bool)
        self._cameras: dict[str, Camera] = {"main_images": main_camera(config)}
        if config.wrist_camera:
            self._cameras["wrist_images"] = wrist_camera(config)
        if config.front_camera:
            self._cameras["extra_view_images"] = front_camera(config)
        self._picture: Camera | None = None

    @property
    def scenes(self) -> Scenes:
        """The state of the tables; for experts and tests, a policy has the observations."""
        return self._scenes

    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Start the scenes ``indices`` anew, each determined by its seed alone."""
        drawn = self._sampler.draw(np.array(seeds, dtype=np.uint64))
        self._scenes.replace_rows(indices, drawn)
        self._rewarded[indices] = False
        for index, text in zip(indices, instructions(drawn), strict=True):
            self._texts[index] = text

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Apply one action per scene, [N, action_dim], in the scenes ``active`` [N]."""
        config, scenes = self.config, self._scenes
        before = distance_to_go(scenes)
        advance(scenes, actions.astype(np.float64), active, config)
        success = solved(scenes, config)
        rewards = config.success_reward * (success & ~self._rewarded)
        if config.reward == "shaped":
            rewards = rewards + config.progress_reward * (before - distance_to_go(scenes))
        self._rewarded |= success & active
        return SceneOutcome(rewards=rewards, terminated=success | scenes.misplaced, success=success)

    def observe_scenes(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return what the scenes ``indices`` look like."""
        scenes = self._scenes
        if len(indices) != scenes.count or (indices != np.arange(scenes.count)).any():
            scenes = scenes.rows(indices)
        fields: dict[str, Any] = {}
        for name, camera in self._cameras.items():
            images = camera.images(scenes)
            if self.config.blank_images:
                images = np.full_like(images, 128)
            fields[name] = images[:, None] if name == "extra_view_images" else images
        fields["states"] = states(scenes)
        fields["task_descriptions"] = [self._texts[index] for index in indices]
        return fields

    def label_scenes(self, indices: NDArray[np.int64]) -> Sequence[SceneLabel]:
        """Return the name of the task, and whether the object that counts is held out."""
        return labels(self._scenes, indices, self.config)

    def expert_scenes(self) -> NDArray[np.float32]:
        """Return what the scripted expert would do next, float32 [N, action_dim]."""
        return expert_actions(self._scenes, self.config, self.action_dim)

    def render_scene(self, index: int) -> NDArray[np.uint8]:
        """Return a picture of scene ``index`` from above, uint8 [128, 128, 3]."""
        if self._picture is None:
            changes = {"image_size": PICTURE_SIZE, "main_camera": "table"}
            self._picture = main_camera(self.config.model_copy(update=changes))
        return self._picture.images(self._scenes.rows(np.array([index])))[0]

    def close(self) -> None:
        """There is nothing to release."""
        return None


def states(scenes: Scenes) -> NDArray[np.float32]:
    """What the robot knows of itself, float32 [N, 5]: hand x, y, height, gripper closed, something held."""
    found = np.empty((scenes.count, 5), np.float32)
    found[:, :3] = scenes.hand
    found[:, 3] = scenes.closed
    found[:, 4] = scenes.held >= 0
    return found
