"""The objectives that workers compute: no step may depend on how its batch happened to be padded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms.aggregation import MODES  # noqa: E402
from plugrl.config.schema import ActorConfig, CriticConfig  # noqa: E402
from plugrl.engines.base import LossContext  # noqa: E402
from plugrl.metric import Metric  # noqa: E402
from plugrl.workers.dispatch import DataPlace  # noqa: E402
from plugrl.workers.groups import TrainingGroup  # noqa: E402
from plugrl.workers.objectives import PolicyObjective, ValueObjective  # noqa: E402
from plugrl.workers.training import TrainingWorker  # noqa: E402

CONTEXT = LossContext(dp_size=1, batch_num_tokens=5, global_batch_size=2)


def padded(width: int) -> dict[str, Any]:
    """Two rows of three and two tokens."""
    mask = torch.zeros(2, width)
    mask[0, :3] = mask[1, :2] = 1
    numbers = torch.zeros(2, width)
    numbers[:, :3] = torch.tensor([[-0.5, -1.0, -0.2], [-0.3, -0.7, 0.0]])
    return {"mask": mask, "numbers": numbers}


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_does_not_depend_on_the_longest_response_of_the_batch(mode: str) -> None:
    losses: list[list[float]] = []
    for width in (3, 7):
        rows = padded(width)
        numbers, mask = rows["numbers"], rows["mask"]
        batch = {"response_mask": mask, "old_log_probs": numbers * 0.9, "advantages": -numbers, "values": numbers}
        batch["returns"] = numbers + mask
        actor = PolicyObjective(config=ActorConfig(loss_agg_mode=mode), max_response_length=8)
        critic = ValueObjective(config=CriticConfig(loss_agg_mode=mode), max_response_length=8)
        results = [actor({"logprobs": numbers}, batch, CONTEXT), critic({"values": numbers}, batch, CONTEXT)]
        losses.append([loss.item() for loss, _ in results])
    assert losses[0] == pytest.approx(losses[1])
    assert all(losses[0])


class Engine:
    """Counts how often its schedule advances."""

    steps = 0

    def lr_scheduler_step(self) -> float:
        """Advance."""
        self.steps += 1
        return 0.5


def test_a_step_without_anything_to_learn_advances_the_schedule_all_the_same() -> None:
    worker = TrainingWorker.__new__(TrainingWorker)
    worker.engine = Engine()
    assert worker.train([], None, None) == [{"lr": Metric(0.5)}]
    assert worker.engine.steps == 1


class Group:
    """A group whose two ranks answer what it is given."""

    size, name, generation = 2, "actor", 1

    def __init__(self, *metrics: dict[str, Metric]) -> None:
        self.answers = [list(metrics)] * 2

    def execute(self, method: str, **_: Any) -> Any:
        """Return something to wait for."""
        places = [DataPlace(rank, 2, answers=True) for rank in range(2)]
        return SimpleNamespace(wait=lambda timeout: places if method == "data_place" else self.answers)


def test_a_skipped_optimizer_step_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    sound, nan = ({"grad_norm": Metric(value), "skipped_steps": Metric(3, "max")} for value in (1.0, float("nan")))
    TrainingGroup(Group(sound), 1.0).train([], None, None)
    assert not caplog.records
    TrainingGroup(Group(sound, nan), 1.0).train([], None, None)
    assert "actor: a gradient was not finite" in caplog.text and "(3 so far)" in caplog.text
