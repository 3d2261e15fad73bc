"""Prompts as ids, padded where patches are inserted."""

from __future__ import annotations

import pytest
import torch

from plugrl.errors import ConfigError, DataError
from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.prompts import PromptEncoder, Prompts, pad_prompts, prompt_text, trimmed


class LetterTokenizer:
    """One id per character; with ``space`` a lone space has an id of its own, as in SentencePiece."""

    bos_token_id, pad_token_id = 1, 0

    def __init__(self, space: int | None = 7) -> None:
        self.calls = 0
        self._space = space

    def get_vocab(self) -> dict[str, int]:
        return {} if self._space is None else {"▁": self._space}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        self.calls += 1
        return [ord(letter) + 10 for letter in text.rstrip(" ")]


@pytest.mark.parametrize("case", cases("prompt"))
def test_the_prompt_of_an_instruction(case: Case) -> None:
    case.check({"prompt": prompt_text(case.given["task"])})


@pytest.mark.parametrize("case", cases("pad_bos"))
def test_padding_stands_after_the_first_token(case: Case) -> None:
    with case.outcome():
        found = pad_prompts(case.given["prompts"], case.given["max_len"], case.given["pad"], case.given["bos"])
        case.check({"input_ids": found.input_ids, "attention_mask": found.attention_mask})


def test_special_ids_come_from_the_tokenizer() -> None:
    encoder = PromptEncoder(LetterTokenizer(), max_length=80)
    found = encoder.encode(["Push it", "Push the red cube"])
    assert found.input_ids.shape == (2, 80)
    assert found.input_ids[:, 0].tolist() == [1, 1] and found.input_ids[:, -1].tolist() == [7, 7]
    assert found.input_ids[0, 1] == 0 and found.attention_mask[0, 1] == 0
    assert found.attention_mask.sum(dim=1).tolist() == [len(prompt_text(task)) + 1 for task in ("push it", "x" * 17)]
    without = PromptEncoder(LetterTokenizer(space=None), max_length=80, pad_id=5).encode(["push it"])
    assert without.input_ids[0, -1] == ord(":") + 10 and without.input_ids[0, 1] == 5


def test_an_instruction_is_encoded_once() -> None:
    tokenizer = LetterTokenizer()
    encoder = PromptEncoder(tokenizer, max_length=80)
    first = encoder.encode(["push it", "push it"])
    assert tokenizer.calls == 1 and torch.equal(first.input_ids, encoder.encode(["push it"] * 2).input_ids)


def test_columns_that_are_all_padding_are_left_out() -> None:
    prompts = pad_prompts([[1, 5, 6], [1, 7]], 6, pad_id=0, bos_id=1)
    short = trimmed(prompts)
    assert short.input_ids.tolist() == [[1, 5, 6], [1, 0, 7]]
    assert short.attention_mask.tolist() == [[1, 1, 1], [1, 0, 1]]
    assert trimmed(short).input_ids is short.input_ids
    empty = trimmed(Prompts(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64)))
    assert empty.input_ids.shape == (1, 1), "the first column stays"


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.max_prompt_length: 9 is too short for a prompt of"):
        PromptEncoder(LetterTokenizer(), max_length=9).encode(["push it"])
    with pytest.raises(DataError, match="prompt 1 does not begin with the first token 1"):
        pad_prompts([[1, 2], [3]], 4, 0, 1)
    nameless = LetterTokenizer()
    nameless.pad_token_id = None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="has no pad_token"):
        PromptEncoder(nameless, max_length=9)
