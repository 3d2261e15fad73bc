"""Collecting demonstrations from an environment's expert."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from plugrl.data.observations import frame_features, observation  # noqa: E402
from plugrl.envs.config import EnvParams  # noqa: E402
from plugrl.errors import DataError, UserError  # noqa: E402
from plugrl.runners.demonstrations import Collector  # noqa: E402
from plugrl.testing.corridor import Corridor  # noqa: E402


class Guided(Corridor):
    """A corridor with an expert who goes half the way to the goal."""

    def expert_scenes(self):
        return ((3.5 - self.position[:, None]) / 2).astype(numpy.float32)


def collected(num_envs, episodes, *, noise=0.0, first_seed=100, max_attempts=None, **settings):
    found = []
    env = Guided(EnvParams(num_envs=num_envs, auto_reset=False, **settings))
    collector = Collector(env, episodes=episodes, first_seed=first_seed, noise=noise, max_attempts=max_attempts)
    tally = collector.run(found.append)
    return found, tally


def test_the_number_of_scenes_changes_no_demonstration():
    runs = [collected(scenes, 5, noise=0.8, max_episode_steps=3)[0] for scenes in (1, 3, 16)]
    first = runs[0]
    assert len(first) == 5 and [demo.seed for demo in first] == sorted(demo.seed for demo in first)
    for run in runs[1:]:
        assert [demo.seed for demo in run] == [demo.seed for demo in first]
        for one, other in zip(run, first, strict=True):
            for name in one.frames:
                numpy.testing.assert_array_equal(one.frames[name], other.frames[name])


def test_only_successes_are_kept_and_the_expert_s_own_action_is_recorded():
    found, tally = collected(4, 6, noise=0.8, max_episode_steps=2)
    assert tally.kept == 6 and tally.failed > 0 and tally.attempts == 6 + tally.failed
    disturbances = []
    for demo in found:
        states, actions = demo.frames["observation.state"][:, 0], demo.frames["action"][:, 0]
        numpy.testing.assert_allclose(actions, (3.5 - states) / 2, rtol=1e-5)
        assert demo.frames["next.success"][-1]
        assert demo.frames["next.done"].tolist() == [False] * (demo.length - 1) + [True]
        moved = numpy.diff(states)
        disturbances += numpy.abs(moved - actions[:-1]).tolist()
        numpy.testing.assert_allclose(demo.frames["next.reward"][:-1], moved, rtol=1e-5, atol=1e-6)
        assert demo.return_ == pytest.approx(demo.frames["next.reward"].sum(), rel=1e-5)
        assert demo.task.startswith("walk")
    assert max(disturbances) > 0.05, "the noise was not carried out"


def test_an_expert_that_fails_ends_the_search_with_what_to_change():
    with pytest.raises(UserError, match=r"solved 0 of 7 attempts.*demos.max_attempts, which is 7.*max_episode_steps"):
        collected(3, 2, max_episode_steps=1, max_attempts=7)


def test_fields_of_an_observation_survive_the_way_through_a_data_set():
    obs = {
        "main_images": torch.randint(0, 256, (2, 4, 5, 3), dtype=torch.uint8),
        "extra_view_images": torch.randint(0, 256, (2, 2, 4, 5, 3), dtype=torch.uint8),
        "states": torch.rand(2, 3),
        "task_descriptions": ["a", "b"],
    }
    frames = [frame_features(obs, scene) for scene in range(2)]
    batch = {
        name: torch.stack([torch.from_numpy(frame[name]) for frame in frames]).float() for name in frames[0]
    }
    batch = {
        name: value.movedim(-1, -3) / 255 if "images" in name else value for name, value in batch.items()
    } | {"task_index": torch.tensor([1, 0])}
    back = observation(batch, {0: "b", 1: "a"})
    assert back.keys() == obs.keys() and back["task_descriptions"] == ["a", "b"]
    for name in ("main_images", "extra_view_images", "states"):
        assert torch.equal(back[name], obs[name]), name


def test_the_only_camera_of_a_foreign_data_set_is_the_main_one():
    top = {"observation.images.top": torch.rand(1, 3, 4, 4), "task_index": torch.tensor([0])}
    assert observation(top, {0: "do"})["main_images"].shape == (1, 4, 4, 3)
    with pytest.raises(DataError, match=r"observation.images.top: .* must call them"):
        observation({**top, "observation.images.side": torch.rand(1, 3, 4, 4)}, {0: "do"})
    with pytest.raises(DataError, match="no text for task 0"):
        observation(top, {1: "do"})
