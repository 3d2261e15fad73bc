"""What is drawn: places, colours, shapes, splits, sentences, and random numbers by counter."""

from __future__ import annotations

import numpy as np
import pytest

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.draws import noise, uniforms
from plugrl_envs_tabletop.scenes import Scenes, SceneSampler, instructions
from plugrl_envs_tabletop.words import COLOURS, SHAPES

NAMES = tuple(COLOURS)


def draw(count: int = 2000, **settings) -> tuple[Scenes, TabletopConfig]:
    config = TabletopConfig(**settings)
    return SceneSampler(config).draw(np.arange(count, dtype=np.uint64)), config


def pairs(scenes: Scenes) -> set[tuple[str, str]]:
    return {(NAMES[c], SHAPES[s]) for c, s in zip(scenes.colour.ravel(), scenes.shape.ravel(), strict=True)}


def test_random_numbers_are_even_and_independent_of_company() -> None:
    seeds = np.arange(5000, dtype=np.uint64)
    numbers = uniforms(seeds, 3, 4)
    assert abs(numbers.mean() - 0.5) < 0.01 and abs(numbers.std() - 12**-0.5) < 0.01
    assert abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.06
    assert (uniforms(seeds[[7]], 3, 4) == numbers[7]).all() and (uniforms(seeds, 4, 4) != numbers).all()
    bell = noise(seeds, np.zeros(5000, np.int64), 2)
    assert abs(bell.mean()) < 0.03 and abs(bell.std() - 1) < 0.03


def test_splits_share_no_object_and_cover_all() -> None:
    seen, unseen = (pairs(draw(split=split)[0]) for split in ("seen", "unseen"))
    assert not seen & unseen
    assert unseen == {("red", "ball"), ("green", "cube"), ("blue", "cone"), ("yellow", "cross"), ("purple", "ball"),
                      ("cyan", "cube")}  # fmt: skip
    assert seen | unseen == pairs(draw(split="all")[0]) and len(seen | unseen) == 24


@pytest.mark.parametrize("entry", ["cross", "purple"])
def test_whole_shapes_and_colours_can_be_held_out(entry: str) -> None:
    seen = pairs(draw(holdout=(entry,))[0])
    unseen = pairs(draw(holdout=(entry,), split="unseen", distractors=0)[0])
    assert not any(entry in pair for pair in seen) and all(entry in pair for pair in unseen)


def test_the_colour_or_the_pair_tells_objects_apart() -> None:
    by_colour, _ = draw()
    assert all(len(set(row)) == 3 for row in by_colour.colour.tolist())
    by_pair, _ = draw(refer="pair", distractors=4)
    rows = [set(zip(*row, strict=True)) for row in zip(by_pair.colour.tolist(), by_pair.shape.tolist(), strict=True)]
    assert all(len(row) == 5 for row in rows)
    assert any(len(set(row)) < 5 for row in by_pair.colour.tolist())


def test_places_are_apart_and_spread_over_the_table() -> None:
    scenes, config = draw()
    gaps = np.linalg.norm(scenes.objects[:, :, None] - scenes.objects[:, None], axis=-1)[:, ~np.eye(3, dtype=bool)]
    assert np.quantile(gaps, 0.001) >= 2 * config.object_radius
    target = scenes.target_places()
    counts, *_ = np.histogram2d(target[:, 0], target[:, 1], bins=4, range=[[-0.8, 0.8]] * 2)
    assert counts.min() > 2000 / 16 * 0.7
    hand = np.linalg.norm(scenes.hand[:, None, :2] - scenes.objects, axis=-1)
    assert (hand.min(1) > config.object_radius).mean() > 0.999


def test_the_order_of_objects_says_nothing_about_the_target() -> None:
    scenes, _ = draw(tasks=("push",))
    assert np.bincount(scenes.target).min() > 2000 / 3 * 0.85
    assert np.bincount(scenes.goal).min() > 1000 * 0.85


def test_tasks_do_not_begin_solved() -> None:
    scenes, config = draw(tasks=("push", "pick_place"))
    away = np.linalg.norm(scenes.zones[:, None] - scenes.objects[:, :, None], axis=-1)
    assert (away.min((1, 2)) > config.success_radius).all()


def test_instructions_name_the_target_and_the_zone() -> None:
    scenes, _ = draw(300, tasks=("reach", "push", "pick_place"), phrasings=3)
    texts = instructions(scenes)
    assert len({text.split()[0] for text in texts}) > 5
    for row, text in enumerate(texts):
        item = scenes.target[row]
        assert f"{NAMES[scenes.colour[row, item]]} {SHAPES[scenes.shape[row, item]]}" in text
        if "zone" in text:
            assert f"{NAMES[scenes.zone_colour[row, scenes.goal[row]]]} zone" in text
    plain, _ = draw(50)
    assert all(text.startswith("reach the ") for text in instructions(plain))


def test_swapped_instructions_name_something_else_that_is_there() -> None:
    scenes, _ = draw(300, tasks=("push",), swap_instructions=True)
    same, _ = draw(300, tasks=("push",))
    assert (scenes.objects == same.objects).all() and (scenes.target == same.target).all()
    assert (scenes.named_object != scenes.target).all() and (scenes.named_zone != scenes.goal).all()
    assert instructions(scenes) != instructions(same)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["stack"]}, "tasks must be different names out of reach, push, pick_place; unknown: stack"),
        ({"colours": ["red", "red"]}, "colours must be different names"),
        ({"holdout": ["red teapot"]}, 'got "red teapot"'),
        ({"distractors": 6}, "the split seen has 6 colours, too few for a target and 6 distractors"),
        ({"action_dim": 2, "tasks": ["pick_place"]}, "action_dim 2 is too small: pick_place take 4"),
        ({"distractors": 0, "swap_instructions": True}, "swap_instructions needs distractors"),
        ({"tasks": ["push"], "zones": 4, "colours": ["red", "blue", "cyan"]}, "4 zones need as many colours"),
        ({"image_sizes": 32}, "image_sizes"),
    ],
)
def test_mistakes_are_told(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TabletopConfig(**settings)
