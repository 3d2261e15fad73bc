"""How much of the tabletop's task reach can be cloned in closed form, with eyes and ears and without.

For each colour word one ridge regression from a 16x16 image to the expert's action: random features of each pixel's
colour, their sum and their first moments over the image, and 1,200 random rectified mixtures of these. Nothing of the
palette or of places is built in. Demonstrations are taken under slips (action_noise 0.3). Success in per cent of 600
episodes whose seeds occur in no demonstration; chance is 2 to 3.

    python benchmarks/tabletop_cloning.py [--demonstrations 300 1000 3000]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv
from plugrl_envs_tabletop.render import TABLE
from plugrl_envs_tabletop.words import COLOURS

SIZE, CHANNELS, MIXTURES, RIDGE = 16, 16, 1200, 0.01
EVALUATION_SEED, STATISTICS_SEED = 10**7, 77
Floats = NDArray[np.float32]


class Features:
    """Features [n, F] of images [n, SIZE, SIZE, 3], standardised by those of some images."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        generator = np.random.default_rng(0)
        self.colour = generator.normal(size=(3, CHANNELS)).astype(np.float32) * 3
        self.offset = -(self.colour * generator.uniform(0, 1, (3, CHANNELS))).sum(0).astype(np.float32)
        side = np.linspace(-1, 1, SIZE)
        self.moments = np.stack([np.ones(SIZE**2), np.tile(side, SIZE), np.repeat(-side, SIZE)], 1).astype(np.float32)
        self.mixing = generator.normal(size=(3 * CHANNELS, MIXTURES)).astype(np.float32) * 1.5 / (3 * CHANNELS) ** 0.5
        self.shift = generator.uniform(-2, 2, MIXTURES).astype(np.float32)
        raw = self._moments(images)
        self.mean, self.std = raw.mean(0), raw.std(0) + 1e-6

    def _moments(self, images: NDArray[np.uint8]) -> Floats:
        empty = np.maximum(np.array(TABLE, np.float32) / 255 @ self.colour + self.offset, 0)
        seen = np.maximum(images.astype(np.float32) / 255 @ self.colour + self.offset, 0) - empty
        return np.einsum("npk,pm->nkm", seen.reshape(len(images), -1, CHANNELS), self.moments).reshape(len(images), -1)

    def __call__(self, images: NDArray[np.uint8]) -> Floats:
        raw = (self._moments(images) - self.mean) / self.std
        mixed = np.maximum(raw @ self.mixing + self.shift, 0)
        return np.concatenate([raw, np.ones((len(raw), 1), np.float32), mixed], axis=1)


def build(count: int, **settings: Any) -> TabletopEnv:
    """Tables that stop when their episode ends."""
    return TabletopEnv(TabletopConfig(num_envs=count, image_size=SIZE, auto_reset=False, **settings))


def colour_words(obs: Any) -> NDArray[np.int64]:
    """The number of the colour word in each instruction."""
    return np.array([list(COLOURS).index(text.split()[2]) for text in obs["task_descriptions"]])


def demonstrations(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], Floats]:
    """Images, colour words and actions of the steps of ``count`` episodes."""
    env = build(count, action_noise=0.3)
    obs, _ = env.reset(seed=seed)
    alive = np.ones(count, bool)
    images, words, actions = [], [], []
    while alive.any():
        action = env.expert_actions()
        images.append(obs["main_images"].numpy()[alive])
        words.append(colour_words(obs)[alive])
        actions.append(action.numpy()[alive])
        result = env.step(action)
        obs = result.obs
        alive &= ~result.dones.numpy()
    return np.concatenate(images), np.concatenate(words), np.concatenate(actions)


def fit(features: Floats, words: NDArray[np.int64], actions: Floats) -> dict[int, Floats]:
    """Weights [F, 2] for each colour word."""
    weights = {}
    for word in np.unique(words):
        chosen = features[words == word]
        gram = chosen.T @ chosen
        gram[np.diag_indices(len(gram))] += RIDGE * len(chosen)
        weights[int(word)] = np.linalg.solve(gram, chosen.T @ actions[words == word])
    return weights


def success(features: Features, weights: dict[int, Floats], **settings: Any) -> float:
    """Per cent of 600 episodes that the cloned policy solves."""
    env = build(600, **settings)
    obs, _ = env.reset(seed=EVALUATION_SEED)
    for _ in range(env.max_episode_steps or 0):
        seen, words = features(obs["main_images"].numpy()), colour_words(obs)
        actions = np.zeros((600, 2), np.float32)
        for word, matrix in weights.items():
            actions[words == word] = seen[words == word] @ matrix
        result = env.step(torch.from_numpy(np.clip(actions, -1, 1)))
        obs = result.obs
    return 100 * float(result.success_once.float().mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demonstrations", type=int, nargs="+", default=[300, 1000, 3000])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    features = Features(demonstrations(300, STATISTICS_SEED)[0])
    cases: dict[str, dict[str, Any]] = {
        "seen": {}, "unseen objects": {"split": "unseen"}, "image blanked": {"blank_images": True},
        "instruction swapped": {"swap_instructions": True},
    }  # fmt: skip
    print("| demonstrations | steps | " + " | ".join(cases) + " |")
    print("|---:|---:|" + "---:|" * len(cases))
    for count in arguments.demonstrations:
        images, words, actions = demonstrations(count, 0)
        weights = fit(features(images), words, actions)
        rates = [success(features, weights, **settings) for settings in cases.values()]
        print(f"| {count:,} | {len(words):,} | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
