"""The contract of environments: chunks, ends of episodes, the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from plugrl.envs.registry import ENVS, get_env, register_env
from plugrl.errors import NotRegistered, PluginError

torch = pytest.importorskip("torch")

from plugrl.envs import StepResult, VecEnv  # noqa: E402


class Counter(VecEnv):
    """Two scenes that add up their actions; the first ends above 1."""

    num_envs = 2

    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        self.total = torch.zeros(2)
        return {"states": self.total.clone()}, {}

    def step(self, actions: Any) -> StepResult:
        self.total += actions[:, 0]
        ended = torch.tensor([bool(self.total[0] > 1), False])
        never = torch.zeros(2, dtype=torch.bool)
        return StepResult(
            obs={"states": self.total.clone()},
            rewards=actions[:, 0],
            terminations=ended,
            truncations=never,
            success_once=ended,
            success_at_end=ended,
        )

    def close(self) -> None: ...


def test_a_chunk_is_its_steps() -> None:
    env = Counter()
    env.reset(seed=0)
    results = env.chunk_step(torch.tensor([[[1.0], [1.0]], [[2.0], [3.0]]]))
    assert [result.rewards.tolist() for result in results] == [[1.0, 2.0], [1.0, 3.0]]
    assert [result.dones.tolist() for result in results] == [[False, False], [True, False]]
    assert env.offload() is None and env.onload() is None


def test_environments_are_found_by_name() -> None:
    with ENVS.temporary():
        register_env("counter")(Counter)
        assert get_env("Counter") is Counter
        with pytest.raises(NotRegistered, match='"counter"'):
            get_env("conter")
        with pytest.raises(PluginError, match="step"):
            register_env("half")(type("Half", (VecEnv,), {}))
        with pytest.raises(PluginError, match="VecEnv"):
            register_env("none")(3)  # type: ignore[type-var]
