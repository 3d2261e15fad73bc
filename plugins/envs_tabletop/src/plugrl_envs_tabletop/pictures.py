"""Writes the picture of the README: what the cameras see of the three tasks, in several sizes.

    python -m plugrl_envs_tabletop.pictures plugins/envs_tabletop/docs/views.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plugrl.data.lerobot.png import encode_png
from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv
from plugrl_envs_tabletop.words import TASKS

SIZES = (28, 56, 112)
SIDE = 112
GAP = 4


def views(size: int) -> NDArray[np.uint8]:
    """One row: main, wrist and front view of each task a step after its beginning, each enlarged to SIDE pixels."""
    row = []
    for task in TASKS:
        config = TabletopConfig(tasks=(task,), image_size=size, wrist_camera=True, front_camera=True)
        env = TabletopEnv(config)
        env.reset(seed=3)
        obs = env.step(env.expert_actions()).obs
        for image in (obs["main_images"][0], obs["wrist_images"][0], obs["extra_view_images"][0, 0]):
            enlarged = image.numpy().repeat(SIDE // size, 0).repeat(SIDE // size, 1)
            row.append(np.pad(enlarged, ((0, GAP), (0, GAP), (0, 0)), constant_values=255))
    return np.concatenate(row, axis=1)


def main() -> None:
    """Write the picture to the path given."""
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(np.concatenate([views(size) for size in SIZES])))


if __name__ == "__main__":
    main()
