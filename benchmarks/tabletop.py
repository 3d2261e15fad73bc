"""Scene-steps a second of the tabletop on one core, images and restarts of ended episodes included.

A scene-step is one action carried out in one scene and everything the policy is shown after it. Actions are random, so
episodes end by time and by mistakes, and start anew. Times are of the processor, best of three.

    python benchmarks/tabletop.py [--scenes 64] [--steps 100]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reach", {"tasks": ("reach",)}),
    ("push", {"tasks": ("push",)}),
    ("pick_place", {"tasks": ("pick_place",)}),
    ("all tasks", {"tasks": ("reach", "push", "pick_place")}),
    ("reach, wrist camera", {"tasks": ("reach",), "wrist_camera": True}),
    ("reach, three cameras", {"tasks": ("reach",), "wrist_camera": True, "front_camera": True}),
)
SIZES = (28, 32, 64)


def scene_steps_per_second(scenes: int, steps: int, **settings: Any) -> float:
    """Scene-steps a second of processor time, best of three."""
    env = TabletopEnv(TabletopConfig(num_envs=scenes, **settings))
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    actions = [torch.rand(scenes, 1, env.action_dim, generator=generator) * 2 - 1 for _ in range(steps)]
    times = []
    for _ in range(3):
        start = time.process_time()
        for action in actions:
            env.chunk_step(action)
        times.append(time.process_time() - start)
    return scenes * steps / min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"scene-steps a second and core, {arguments.scenes} scenes")
    print("| case | " + " | ".join(f"{size}x{size}" for size in SIZES) + " |")
    print("|---|" + "---:|" * len(SIZES))
    for title, settings in CASES:
        sizes = [{**settings, "image_size": size} for size in SIZES]
        rates = [scene_steps_per_second(arguments.scenes, arguments.steps, **case) for case in sizes]
        print(f"| {title} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
