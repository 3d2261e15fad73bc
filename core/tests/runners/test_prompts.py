"""The prompts of a run, as the configuration asks for them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from plugrl.config import RunConfig
from plugrl.runners.prompts import PromptData


class Letters:
    """A processor with one token a character."""

    pad_token_id = 0
    eos_token_ids = (1,)
    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_as_many_prompts_as_asked_for_remain_after_the_long_ones_are_dropped() -> None:
    data = {
        "source": "arithmetic",
        "source_options": {"min": 0, "max": 20, "num_train": 200, "num_val": 100},
        "max_prompt_length": 4,
        "filter_overlong_prompts": True,
        "train_batch_size": 2,
        "train_max_samples": 5,
        "val_max_samples": 7,
    }
    prompts = PromptData(RunConfig.model_validate({"data": data}), Letters())  # type: ignore[arg-type]
    assert (len(prompts.train), len(prompts.val)) == (5, 7)
    assert max(map(len, prompts.train.prompts + prompts.val.prompts)) <= 4
    assert [len(batch.prompts) for batch in prompts.validation_batches()] == [7]
