"""The environment: scenes of Meta-World side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.episodes import SceneLabel, SceneOutcome
from plugrl.envs.episodic import EpisodicEnv
from plugrl_envs_metaworld.config import MetaworldParams
from plugrl_envs_metaworld.graphics import Renderer, import_mujoco
from plugrl_envs_metaworld.scene import Scene
from plugrl_envs_metaworld.tasks import INSTRUCTIONS

ACTION_DIM = 4
_GOAL = 3


class MetaworldEnv(EpisodicEnv):
    """Scenes of one or several tasks; actions are [-1, 1]: three shifts of the hand, and the gripper's effort.

    The seed of an episode decides its task (of several), its objects and its goal. Raises MissingDependency when
    pictures are asked for and there is no OpenGL.
    """

    def __init__(self, params: MetaworldParams) -> None:
        super().__init__(params, action_dim=ACTION_DIM)
        import_mujoco(pictures=bool(params.cameras))
        self._options = params
        self._scenes: list[Scene | None] = [None] * params.num_envs
        self._idle: dict[str, list[Scene]] = {}
        self._renderers: dict[tuple[str, int], Renderer] = {}

    # ----------------------------------------------------------------- the simulator
    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Start episodes; a scene whose task changes takes one of the idle ones of that task."""
        tasks = self._options.tasks
        for index, seed in zip(indices.tolist(), seeds, strict=True):
            self._scene_of(index, tasks[seed % len(tasks)]).reset(seed)

    def _scene_of(self, index: int, task: str) -> Scene:
        scene = self._scenes[index]
        if scene is not None and scene.task == task:
            return scene
        if scene is not None:
            self._idle.setdefault(scene.task, []).append(scene)
        idle = self._idle.get(task)
        scene = idle.pop() if idle else Scene(task, self._options.reward_function_version)
        self._scenes[index] = scene
        return scene

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Step the active scenes one after the other."""
        rewards = np.zeros(len(active), dtype=np.float32)
        success = np.zeros(len(active), dtype=np.bool_)
        bounded = np.minimum(np.maximum(actions, -1.0), 1.0)
        for index in np.flatnonzero(active).tolist():
            rewards[index], success[index] = self._there(index).step(bounded[index])
        if self._options.reward == "sparse":
            rewards = success.astype(np.float32)
        ended = success if self._options.terminate_on_success else np.zeros_like(success)
        return SceneOutcome(rewards=rewards * self._options.reward_scale, terminated=ended, success=success)

    def observe_scenes(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return states, pictures and instructions, as configured."""
        options, scenes = self._options, [self._there(index) for index in indices.tolist()]
        fields: dict[str, Any] = {}
        if options.states:
            states = np.stack([scene.obs for scene in scenes]).astype(np.float32)
            if not options.goal_visible:
                states[:, -_GOAL:] = 0.0
            fields["states"] = states
        for field, camera in (("main_images", options.main_camera), ("wrist_images", options.wrist_camera)):
            if camera is not None:
                fields[field] = np.stack([self._picture(scene, camera, options.image_size) for scene in scenes])
        if options.extra_cameras:
            views = [[self._picture(scene, camera, options.image_size) for camera in options.extra_cameras]
                     for scene in scenes]  # fmt: skip
            fields["extra_view_images"] = np.array(views, dtype=np.uint8)
        fields["task_descriptions"] = [INSTRUCTIONS[scene.task] for scene in scenes]
        return fields

    def label_scenes(self, indices: NDArray[np.int64]) -> Sequence[SceneLabel]:
        """Return the names of the tasks."""
        return [SceneLabel(self._there(index).task) for index in indices.tolist()]

    def expert_scenes(self) -> NDArray[np.float32]:
        """Return what Meta-World's own policies do next."""
        return np.stack([self._there(index).expert() for index in range(self.num_envs)])

    def render_scene(self, index: int) -> NDArray[np.uint8]:
        """Return a picture by ``render_camera``. Raises MissingDependency without OpenGL."""
        return self._picture(self._there(index), self._options.render_camera, self._options.render_size)

    def close(self) -> None:
        """Free the graphics and the scenes."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        self._idle.clear()
        self._scenes = [None] * self.num_envs

    # ----------------------------------------------------------------- inside
    def _there(self, index: int) -> Scene:
        scene = self._scenes[index]
        assert scene is not None
        return scene

    def _picture(self, scene: Scene, camera: str, size: int) -> NDArray[np.uint8]:
        renderer = self._renderers.get((scene.task, size))
        if renderer is None:
            renderer = Renderer(scene.sim.model, size, self._options.render_quality == "full")
            self._renderers[scene.task, size] = renderer
        return renderer.picture(scene.sim.model, scene.sim.data, camera)
