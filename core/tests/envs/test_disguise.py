"""Evaluations in which the policy cannot look, or is told something else."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from plugrl.envs.config import EnvParams  # noqa: E402
from plugrl.envs.disguise import GREY, disguised, own_disguises  # noqa: E402
from plugrl.errors import UserError  # noqa: E402
from plugrl.testing.corridor import Corridor  # noqa: E402


class Seen(Corridor):
    """A corridor with a camera, whose instruction is the seed's last digit; ``texts`` may make them all alike."""

    texts = "go to {}"

    def observe_scenes(self, indices):
        seeds = [self.seeds[index] for index in indices]
        pictures = numpy.stack([numpy.full((2, 2, 3), int(self.position[i] * 10), numpy.uint8) for i in indices])
        words = [self.texts.format(seed % 10) for seed in seeds]
        return {"main_images": pictures, "states": self.position[indices, None], "task_descriptions": words}


def test_pictures_are_grey_and_nothing_else_changes():
    plain, blank = (Seen(EnvParams(num_envs=3)) for _ in range(2))
    hidden = disguised(blank, blank_images=True)
    seen, unseen = plain.reset(5)[0], hidden.reset(5)[0]
    for _ in range(5):
        assert (unseen["main_images"] == GREY).all() and not (seen["main_images"] == GREY).any()
        assert torch.equal(seen["states"], unseen["states"])
        assert seen["task_descriptions"] == unseen["task_descriptions"]
        seen, unseen = (env.chunk_step(torch.full((3, 2, 1), 0.9)).obs for env in (plain, hidden))
    assert hidden.seeds == plain.seeds and (hidden.num_envs, hidden.action_dim, hidden.max_episode_steps) == (3, 1, 12)
    assert disguised(plain) is plain


def test_every_scene_gets_another_instruction_until_its_episode_ends():
    env = Seen(EnvParams(num_envs=3))
    swapped = disguised(env, swap_instructions=True)
    obs, _ = swapped.reset([11, 11, 12])
    assert obs["task_descriptions"] == ["go to 2", "go to 2", "go to 1"]
    for _ in range(5):
        actions = torch.zeros(3, 1, 1)
        actions[0] = 2.0  # ends after two actions, alone
        result = swapped.chunk_step(actions)
        assert result.obs["task_descriptions"][1:] == ["go to 2", "go to 1"], "an instruction changed on the way"
        own = f"go to {env.seeds[0] % 10}"
        assert result.obs["task_descriptions"][0] != own
        if result.final_obs is not None:
            assert len(set(result.final_obs["task_descriptions"])) == 2
    alike = Seen(EnvParams(num_envs=2))
    alike.texts = "go"
    with pytest.raises(UserError, match='all scenes have the instruction "go"'):
        disguised(alike, swap_instructions=True).reset(1)


def test_an_environment_that_can_do_it_better_does_it_itself():
    class Own(EnvParams):
        swap_instructions: bool = False

    assert own_disguises(Own, True, True) == {"swap_instructions": True}
    assert own_disguises(Own, True, False) == {} == own_disguises(EnvParams, True, True)
