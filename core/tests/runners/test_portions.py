"""Rows that were made, read and extended in portions come together as if they had never been apart."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from plugrl.rewards.base import RewardResult
from plugrl.rollouts.base import Completion
from plugrl.runners.experience import Experience, collect
from plugrl.runners.portions import Portions

PAD = 63


class Processor:
    pad_token_id = PAD

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


def made(lengths: list[tuple[int, list[int]]], first: int = 0) -> Experience:
    """Prompts of given lengths with responses of given lengths."""
    completions = [
        Completion(
            prompt_index=i, sample_index=j, tokens=tuple(range(1, length + 1)), logprobs=torch.arange(length) / 7,
            finish_reason="stop", weight_version=first + i,
        )
        for i, (_, responses) in enumerate(lengths) for j, length in enumerate(responses)
    ]  # fmt: skip
    prompts = [[first + i + 1] * width for i, (width, _) in enumerate(lengths)]
    records: Any = [SimpleNamespace(text=str(first + i)) for i in range(len(lengths))]
    return collect(records, prompts, completions, Processor(), first)  # type: ignore[arg-type]


def same(a: Experience, b: Experience) -> bool:
    return (
        a.group_ids == b.group_ids and a.texts == b.texts and a.weight_versions == b.weight_versions
        and [r.text for r in a.records] == [r.text for r in b.records]
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    )  # fmt: skip


def test_any_portions_give_the_rows_of_the_whole() -> None:
    draw = random.Random(4)
    for _ in range(60):
        total, n = draw.choice([4, 6, 8]), draw.randint(1, 3)
        lengths = [(draw.randint(1, 5), [draw.randint(0, 6) for _ in range(n)]) for _ in range(total)]
        sizes = draw.choices([size for size in range(1, total + 1) if total % size == 0], k=3)
        store = Portions.for_sizes(total, sizes, PAD)
        for start in range(0, total, sizes[0]):
            store.put(start, start + sizes[0], made(lengths[start : start + sizes[0]], start))
        assert same(store.whole(), made(lengths)), (lengths, sizes)
        for start in range(0, total, sizes[1]):
            with store.view(start, start + sizes[1]) as rows:
                assert rows.group_ids == [start + i // n for i in range(sizes[1] * n)]
                rows.tensors["double"] = rows.tensors["rollout_log_probs"] * 2
                rows.results = [RewardResult(float(group), {}) for group in rows.group_ids]
        for start in range(0, total, sizes[2]):
            with store.view(start, start + sizes[2]) as rows:
                assert torch.equal(rows.tensors["double"], rows.tensors["rollout_log_probs"] * 2)
                rows.tensors["row"] = torch.tensor([float(group) for group in rows.group_ids])
        whole = store.whole()
        assert torch.equal(whole.tensors["double"], made(lengths).tensors["rollout_log_probs"] * 2)
        assert whole.tensors["row"].tolist() == [float(result.score) for result in whole.results]


def test_who_adds_nothing_takes_nothing_away() -> None:
    """A stage that looks at several pieces while another one scores them keeps their results."""
    store = Portions(2, 1, PAD)
    for start in (0, 1):
        store.put(start, start + 1, made([(2, [3])], start))
    with store.view(0, 2):
        for start in (0, 1):
            with store.view(start, start + 1) as rows:
                rows.results = [RewardResult(1.0, {})]
    assert len(store.whole().results) == 2
