"""Rows are shared out to ranks that see different ones: ranks that share a model get the same, and one answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from plugrl.engines.base import BatchOptions  # noqa: E402
from plugrl.metric import Metric  # noqa: E402
from plugrl.workers.dispatch import DataPlace  # noqa: E402
from plugrl.workers.groups import TrainingGroup  # noqa: E402


class Group:
    """Four ranks, of which two each share a model; the second of the two answers."""

    name, generation, size = "actor", 1, 4

    def __init__(self) -> None:
        self.asked = 0
        self.given: list[list[int]] = []

    def execute(self, method: str, per_rank: Any = None, **_: Any) -> Any:
        """Answer at once; every rank doubles its numbers, and those that do not answer give nonsense."""
        if method == "data_place":
            self.asked += 1
            places = [DataPlace(rank // 2, 2, answers=rank % 2 == 1) for rank in range(4)]
            return SimpleNamespace(wait=lambda timeout: places)
        batches = [arguments[0] for arguments, _ in per_rank]
        if method == "infer":
            self.given = [batch["number"].tolist() for batch in batches]
            factors = [2 if rank % 2 else 100 for rank in range(4)]
            outputs = [{"double": batch["number"] * factor} for batch, factor in zip(batches, factors, strict=True)]
            return SimpleNamespace(wait=lambda timeout: outputs)
        self.given = [batch[0]["number"].tolist() for batch in batches]
        metrics = [[{"sum": Metric(float(batch[0]["number"].sum()) if rank % 2 else 1e6)}]
                   for rank, batch in enumerate(batches)]  # fmt: skip
        return SimpleNamespace(wait=lambda timeout: metrics)


def test_outputs_come_from_those_that_answer_in_the_order_of_the_rows() -> None:
    group = Group()
    batch = {"number": torch.arange(7), "attention_mask": torch.ones(7, 3)}
    trainer = TrainingGroup(group, 1.0)
    outputs = trainer.infer(batch, BatchOptions())
    assert outputs["double"].tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert group.given[0] == group.given[1] and group.given[2] == group.given[3]
    assert sorted(group.given[0] + group.given[2]) == list(range(7)) and trainer.num_shares == 2


def test_metrics_are_those_of_the_ranks_that_answer() -> None:
    group = Group()
    metrics = TrainingGroup(group, 1.0).train([{"number": torch.arange(4)}], None, BatchOptions())
    assert group.given == [[0, 3], [0, 3], [1, 2], [1, 2]] and metrics == {"sum": 3.0}


def test_ranks_are_asked_once_of_each_launch() -> None:
    group = Group()
    trainer = TrainingGroup(group, 1.0)
    for _ in range(3):
        trainer.places()
    assert group.asked == 1
    group.generation = 2
    assert trainer.num_shares == 2 and group.asked == 2
