"""What the cameras see."""

from __future__ import annotations

import numpy as np
import pytest

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv
from plugrl_envs_tabletop.render import TABLE, front_camera, main_camera, wrist_camera
from plugrl_envs_tabletop.scenes import Scenes, SceneSampler
from plugrl_envs_tabletop.words import COLOURS, SHAPES

RGB = np.array(list(COLOURS.values()))


def scene(count: int = 1, **settings) -> tuple[Scenes, TabletopConfig]:
    config = TabletopConfig(**settings)
    return SceneSampler(config).draw(np.arange(count, dtype=np.uint64)), config


@pytest.mark.parametrize("size", [28, 32, 64])
def test_objects_are_where_they_are_in_their_colour(size: int) -> None:
    scenes, config = scene(200, image_size=size, hand_start="centre", shapes=("cube", "ball"), holdout=())
    scenes.hand[:, :2] = 1.0
    images = main_camera(config).images(scenes).astype(int)
    for item in range(3):
        colour = RGB[scenes.colour[:, item]]
        weight = (np.abs(images - colour[:, None, None]).max(-1) < 25).astype(float)
        total = weight.sum((1, 2))
        middle = np.arange(size) + 0.5
        x = (weight.sum(1) * middle).sum(1) / total * 2 / size - 1
        y = 1 - (weight.sum(2) * middle).sum(1) / total * 2 / size
        away = np.hypot(x - scenes.objects[:, item, 0], y - scenes.objects[:, item, 1])
        assert total.min() >= 4 and np.quantile(away, 0.98) < 2 / size


def test_sub_pixel_moves_show() -> None:
    scenes, config = scene(image_size=28)
    before = main_camera(config).images(scenes)
    scenes.objects += 0.02
    assert (main_camera(config).images(scenes) != before).any()


def test_a_main_camera_above_the_hand_sees_the_whole_table_and_moves_with_the_hand() -> None:
    scenes, config = scene(50, image_size=64, main_camera="hand", shapes=("cube", "ball"), holdout=())
    images = main_camera(config).images(scenes).astype(int)
    for item in range(3):
        colour = RGB[scenes.colour[:, item]]
        weight = (np.abs(images - colour[:, None, None]).max(-1) < 25).astype(float)
        middle = (np.arange(64) + 0.5) / 16 - 2
        x = (weight.sum(1) * middle).sum(1) / weight.sum((1, 2))
        y = (weight.sum(2) * -middle).sum(1) / weight.sum((1, 2))
        relative = scenes.objects[:, item] - scenes.hand[:, :2]
        assert np.quantile(np.hypot(x - relative[:, 0], y - relative[:, 1]), 0.98) < 4 / 64


def test_shapes_differ_at_28_pixels() -> None:
    scenes, config = scene(len(SHAPES), image_size=28, distractors=0)
    scenes.objects[:] = 0.0
    scenes.hand[:, :2] = 0.9
    scenes.colour[:] = 0
    scenes.shape[:, 0] = np.arange(len(SHAPES))
    images = main_camera(config).images(scenes).astype(float).reshape(len(SHAPES), -1)
    apart = np.abs(images[:, None] - images).sum(-1)[~np.eye(len(SHAPES), dtype=bool)]
    assert apart.min() > 255 * 2


def test_the_hand_shows_its_height_and_gripper() -> None:
    scenes, config = scene(3, tasks=("pick_place",))
    for name in ("objects", "zones", "hand", "colour", "shape", "zone_colour"):
        getattr(scenes, name)[:] = getattr(scenes, name)[0]
    scenes.hand[1, 2], scenes.closed[2] = 0.0, True
    for camera in (main_camera(config), front_camera(config), wrist_camera(config)):
        open_high, low, closed = camera.images(scenes).astype(float)
        assert np.abs(open_high - low).sum() > 255 and np.abs(open_high - closed).sum() > 255


def test_the_wrist_camera_follows_and_the_edges_are_clean() -> None:
    scenes, config = scene(50, wrist_camera=True, tasks=("push",))
    scenes.hand[:, :2] = np.where(scenes.hand[:, :2] > 0, 1.0, -1.0)
    images = wrist_camera(config).images(scenes)
    assert (images[:, 16, 16] == 255).all()
    scenes.objects[:] = -1.0
    scenes.zones[:] = -1.0
    scenes.hand[:, :2] = -1.0
    assert (main_camera(config).images(scenes)[:, :20, 20:] == TABLE).all()


def test_a_blank_camera_shows_nothing_and_the_rest_is_the_same() -> None:
    blank, plain = (TabletopEnv(TabletopConfig(num_envs=4, blank_images=value)) for value in (True, False))
    first, second = blank.reset(seed=0)[0], plain.reset(seed=0)[0]
    assert first["main_images"].unique().tolist() == [128] and second["main_images"].unique().numel() > 10
    assert first["task_descriptions"] == second["task_descriptions"]
