"""An engine over several ranks: where it stands, who generates, and that all ranks have one version of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import torch

from plugrl.config.schema import ModelConfig, RolloutConfig
from plugrl.errors import ConfigError, PlugRLError
from plugrl.rollouts import Completion, RolloutBackend, SamplingParams
from plugrl.rollouts.following import FollowingBackend
from plugrl.rollouts.registry import ROLLOUTS, register_rollout
from plugrl.workers.groups import RolloutGroup
from plugrl.workers.rollout import RolloutWorker

PARAMS = SamplingParams(max_new_tokens=1)


class Wide(RolloutBackend):
    """An engine of two ranks that answers with its number."""

    started = False

    @classmethod
    def ranks_per_engine(cls, rollout_config: Any) -> int:
        """Two."""
        return 2

    @property
    def engine_version(self) -> str:
        """One that tells engines apart."""
        return f"wide 1.{self.rollout_config.options.get('minor', 0)}"

    @property
    def weight_version(self) -> int:
        """None were loaded."""
        return 0

    def initialize(self) -> None:
        """Note it."""
        self.started = True

    def generate(self, prompts, params, seeds):
        """One token: the number of the engine."""
        return [
            Completion(
                prompt_index=index, sample_index=0, tokens=(self.place.engine,), logprobs=torch.zeros(1),
                finish_reason="stop", weight_version=0,
            )
            for index in range(len(prompts))
        ]  # fmt: skip

    def load_weights(self, tensors, version):
        """Nothing."""

    def sleep(self):
        """Nothing."""

    def wake(self):
        """Nothing."""

    def close(self):
        """Nothing."""


@pytest.fixture(autouse=True)
def _registered():
    with ROLLOUTS.temporary():
        register_rollout("wide")(Wide)
        yield


def workers(count: int, nodes: list[str] | None = None, minors: list[int] | None = None) -> list[RolloutWorker]:
    """Ranks of one group, set up side by side: each publishes its device before the first one asks."""
    told: dict[str, Any] = {}
    directory = SimpleNamespace(publish=told.__setitem__, lookup=lambda name, what: told[name])
    found = []
    for rank in range(count):
        worker = type("Ranked", (RolloutWorker,), {"directory": directory})(
            ModelConfig(), RolloutConfig(name="wide", options={"minor": (minors or [0] * count)[rank]})
        )
        device = SimpleNamespace(physical_id=f"gpu{rank}", variable="MASK")
        node = (nodes or ["a"] * count)[rank]
        worker.context = SimpleNamespace(
            rank=rank, world_size=count, device=device, node_id=node, group="rollout", generation=1
        )
        told[f"rollout-devices/rollout/1/{rank}"] = [node, f"gpu{rank}"]
        found.append(worker)
    for worker in found:
        worker.setup()
    return found


class Group:
    """Calls the workers as a worker group does."""

    def __init__(self, ranks: list[RolloutWorker]) -> None:
        self.ranks, self.size, self.name = ranks, len(ranks), "rollout"

    def execute(self, method: str, *args: Any, per_rank: Any = None) -> Any:
        """Call a method of every rank."""
        calls = per_rank or [(args, {})] * self.size
        answers = [
            getattr(rank, method)(*given, **named) for rank, (given, named) in zip(self.ranks, calls, strict=True)
        ]
        return SimpleNamespace(wait=lambda timeout: answers)


def test_the_first_rank_of_each_engine_gets_the_devices_of_all_and_the_others_follow() -> None:
    ranks = workers(4)
    leaders = [rank.backend for rank in ranks[::2]]
    assert all(isinstance(backend, Wide) and backend.started for backend in leaders)
    assert [(item.place.engine, item.place.engines, item.place.devices) for item in leaders] == [
        (0, 2, ("gpu0", "gpu1")), (1, 2, ("gpu2", "gpu3")),
    ]  # fmt: skip
    assert leaders[0].place.variable == "MASK"
    assert all(isinstance(rank.backend, FollowingBackend) for rank in ranks[1::2])


def test_prompts_go_to_the_engines_alone_and_come_back_in_order() -> None:
    ranks = workers(4)
    for rank in ranks:
        rank.shares_device = False
    group = RolloutGroup(Group(ranks), 1.0, 1, ranks_per_engine=2)
    done = group.generate([[1], [2], [3], [4]], PARAMS, [0, 1, 2, 3])
    assert [item.prompt_index for item in done] == [0, 1, 2, 3]
    assert sorted(token for item in done for token in item.tokens) == [0, 0, 1, 1]
    assert group.generate([], PARAMS, []) == []


def test_ranks_that_do_not_fit_are_refused_with_the_key() -> None:
    with pytest.raises(ConfigError, match="takes 2 devices, so 3 cannot be shared out"):
        workers(3)
    with pytest.raises(ConfigError, match="ranks 2 to 3 of the rollout share an engine, but lie on different nodes"):
        workers(4, nodes=["a", "a", "a", "b"])


def test_different_engines_in_one_group_are_refused() -> None:
    assert RolloutGroup(Group(workers(4)), 1.0, 1, ranks_per_engine=2).check_engines() == "wide 1.0"
    mixed = RolloutGroup(Group(workers(4, minors=[0, 0, 7, 7])), 1.0, 1, ranks_per_engine=2)
    with pytest.raises(ConfigError, match=r"wide 1\.0 on rank 0; wide 1\.7 on rank 2.*python_interpreter_path"):
        mixed.check_engines()


def test_a_follower_keeps_versions_and_no_weights() -> None:
    follower = FollowingBackend(None, None)
    passed = []
    follower.load_weights((passed.append(name) or (name, torch.zeros(1)) for name in "ab"), 3)
    assert passed == ["a", "b"] and follower.weight_version == 3
    follower.load_adapter({}, {}, 4)
    assert follower.weight_version == 4
    with pytest.raises(PlugRLError, match="works for its neighbour"):
        follower.generate([[1]], PARAMS, [1])
