"""Teach a tiny OpenVLA what it sees before it acts: pictures of random scenes, and questions where something is.

Two parts. First the vision tower tells, for each patch, which colours and the hand are in it and where, from a linear
layer that is thrown away afterwards. Then the whole model points: asked to "point at the blue ball", it gives the
place of that object in the picture with its action tokens. Every picture is drawn for the occasion; there are no
actions of an expert and no rewards in it, and none of the unseen objects.

    python examples/openvla_tabletop_pretrain.py [--model-type openvla_oft] [--folder FOLDER] [--seed 0]

It takes about five minutes of one core and writes a checkpoint folder in the layout of published ones.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from plugrl.models import get_model
from plugrl.plugins import load_plugins
from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv
from plugrl_envs_tabletop.scenes import Scenes
from plugrl_envs_tabletop.words import COLOURS, SHAPES

SCENE = {"main_camera": "hand", "image_size": 28, "colours": ("red", "green", "blue")}
KINDS, OBJECTS, PATCHES = len(SCENE["colours"]), 3, 4
TOWER_BATCH, POINTING_BATCH = 128, 96
SEED_OF_SCENES = 2**40
"""Beyond the seeds of training, of demonstrations and of evaluations."""


def model_section(model_type: str, seed: int) -> dict[str, Any]:
    """Return `model:` of the untrained policy: 16 patches, 22 bins, a word for each token."""
    tower = {"embed_dim": 64, "depth": 2, "num_heads": 4, "image_size": 28, "patch_size": 7, "mlp_ratio": 2.0}
    text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    bounds = {"q01": [-1.0, -1.0], "q99": [1.0, 1.0], "mask": [True, True]}
    return {
        "model_type": model_type,
        "config": {
            "vision_backbone_id": "siglip-vit-so400m",
            "vision_overrides": [tower | {"attention_pool": False}],
            "n_action_bins": 22,
            "pad_to_multiple_of": 8,
            "text_config": text | {"num_key_value_heads": 4, "initializer_range": 0.05},
            "norm_stats": {"tabletop": {"action": bounds}},
        },
        "tokenizer": {"type": "words", "words": ["reach the", "point at the", *SCENE["colours"], *SHAPES[:4]]},
        "action_dim": 2,
        "num_action_chunks": 1,
        "max_prompt_length": 14,
        "precision": "fp32",
        "seed": seed,
    }


class Pictures:
    """Random scenes with up to two distractors, and where things are in their pictures."""

    def __init__(self, count: int, first_seed: int) -> None:
        self.count, self._seed = count, first_seed
        settings = {"num_envs": count, **SCENE}
        self._tables = [TabletopEnv(TabletopConfig(distractors=others, **settings)) for others in range(OBJECTS)]

    def next(self, others: int) -> tuple[torch.Tensor, Scenes, torch.Tensor]:
        """Return images [N, 28, 28, 3], the scenes, and places [N, objects, 2] in -1 to 1 of the picture."""
        table = self._tables[others]
        obs, _ = table.reset(seed=self._seed)
        self._seed += self.count
        # The picture is twice as wide as the table, and the hand is in its middle.
        places = (table.scenes.objects - table.scenes.hand[:, None, :2]) / 2
        return obs["main_images"], table.scenes, torch.from_numpy(places).float()


def teach_tower(policy: Any, steps: int, first_seed: int) -> None:
    """Train the vision tower to tell what is in each patch and where: presence, place in the patch, and shape."""
    tower = policy.model.vision_backbone.featurizer
    pictures = Pictures(TOWER_BATCH, first_seed)
    head = nn.Linear(policy.model.vision_backbone.embed_dim, 3 * (KINDS + 1) + len(SHAPES))
    optimizer = Optimizer([*trained(tower), *head.parameters()], 2e-3, steps)
    rows = torch.arange(TOWER_BATCH)[:, None]
    for step in range(steps):
        images, scenes, places = pictures.next(OBJECTS - 1)
        places = torch.cat([places, torch.zeros(TOWER_BATCH, 1, 2)], dim=1)  # the hand is in the middle
        kinds = F.pad(torch.from_numpy(scenes.colour), (0, 1), value=KINDS)
        grid = torch.stack([places[..., 0] + 1, 1 - places[..., 1]], dim=-1) * (PATCHES / 2)
        grid = grid.clamp(0, PATCHES - 1e-3)
        cells = grid[..., 1].long() * PATCHES + grid[..., 0].long()
        present = torch.zeros(TOWER_BATCH, PATCHES**2, KINDS + 1)
        present[rows, cells, kinds] = 1.0
        told = head(tower(policy.parts.images.normalise(policy.parts.images.prepare(images))))
        offsets = told[..., KINDS + 1 : 3 * (KINDS + 1)].unflatten(-1, (KINDS + 1, 2))[rows, cells, kinds]
        shapes = told[..., -len(SHAPES) :][rows[:, :1], cells[:, :-1]]
        loss = 5 * F.binary_cross_entropy_with_logits(told[..., : KINDS + 1], present)
        away = (offsets - (grid - grid.floor() - 0.5)).square().mean()
        loss = loss + 5 * away + 0.1 * F.cross_entropy(shapes.flatten(0, 1), torch.from_numpy(scenes.shape).flatten())
        optimizer.step(loss)
        if (step + 1) % 200 == 0:
            off = away.item() ** 0.5
            print(f"tower {step + 1:5d} of {steps}: loss {loss.item():.3f}, off by {off:.3f} patches", flush=True)


def teach_pointing(policy: Any, steps: int, first_seed: int) -> None:
    """Train the whole model to give the place of the object that it is asked for."""
    pictures = Pictures(POINTING_BATCH, first_seed)
    optimizer = Optimizer(trained(policy), 1.5e-3, steps)
    draws = np.random.default_rng(first_seed)
    every, names = np.arange(POINTING_BATCH), tuple(COLOURS)
    for step in range(steps):
        others = 0 if step < 100 else step % OBJECTS  # one object at first, so that a place is learned before words
        images, scenes, places = pictures.next(others)
        asked = draws.integers(0, others + 1, POINTING_BATCH)
        chosen = zip(scenes.colour[every, asked], scenes.shape[every, asked], strict=True)
        obs = {
            "main_images": images,
            "task_descriptions": [f"point at the {names[colour]} {SHAPES[shape]}" for colour, shape in chosen],
        }
        inputs = policy.sft_inputs(obs, places[every, asked][:, None])
        found = policy(forward_type="sft", forward_inputs=inputs)
        optimizer.step(found["losses"].mean())
        if (step + 1) % 100 == 0:
            off = float(found["metrics"]["action_l1"])
            print(f"pointing {step + 1:5d} of {steps}: {others + 1} objects, off by {off:.3f}", flush=True)


class Optimizer:
    """AdamW with a short warm-up and a linear end, gradients cut to norm 1."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, steps: int) -> None:
        self._parameters, self._steps = parameters, steps
        self._inner = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._inner, lambda step: min(1.0, (step + 1) / 50) * (1 - 0.95 * step / steps)
        )

    def step(self, loss: torch.Tensor) -> None:
        """Go one step down."""
        self._inner.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._inner.step()
        self._schedule.step()


def trained(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def main() -> None:
    """Build, teach and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model-type", default="openvla", choices=["openvla", "openvla_oft"])
    parser.add_argument("--folder", help="where to write it (outputs/examples/MODEL_TYPE_tabletop_pretrained)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tower-steps", type=int, default=1200)
    parser.add_argument("--pointing-steps", type=int, default=2500)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    load_plugins()
    policy: Any = get_model(model_section(given.model_type, given.seed))
    began, first_seed = time.perf_counter(), SEED_OF_SCENES + given.seed * 2**32
    print(f"{sum(parameter.numel() for parameter in trained(policy)):,} parameters", flush=True)
    teach_tower(policy, given.tower_steps, first_seed)
    teach_pointing(policy, given.pointing_steps, first_seed + 2**31)
    folder = given.folder or f"outputs/examples/{given.model_type}_tabletop_pretrained"
    policy.save_pretrained(folder, policy.model.state_dict())
    print(f"{folder} after {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
