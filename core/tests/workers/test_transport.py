"""Completions survive the way from worker to driver."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.rollouts.base import Completion  # noqa: E402
from plugrl.workers.transport import PackedCompletions  # noqa: E402


def test_completions_come_back_as_they_were() -> None:
    sent = [
        Completion(
            prompt_index=index // 2,
            sample_index=index % 2,
            tokens=(1, 2, 3)[: index % 3] if index % 2 else torch.arange(index % 3),
            logprobs=torch.full((index % 3,), -float(index)),
            finish_reason="stop" if index % 2 else "length",
            weight_version=7,
        )
        for index in range(6)
    ]
    received = PackedCompletions.pack(sent).unpack()
    assert len(received) == len(sent)
    for before, after in zip(sent, received, strict=True):
        assert after.tokens == tuple(int(token) for token in before.tokens)
        assert torch.equal(after.logprobs, before.logprobs)
        for name in ("prompt_index", "sample_index", "finish_reason", "weight_version"):
            assert getattr(after, name) == getattr(before, name)


def test_no_completions_are_nothing() -> None:
    assert PackedCompletions.pack([]).unpack() == []
