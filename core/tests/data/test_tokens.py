"""Records to token ids, and token ids to padded tensors."""

from __future__ import annotations

import pytest

from plugrl.data import PromptRecord, tokenize_examples, tokenize_prompts
from plugrl.errors import ConfigError, DataError


class Letters:
    """A processor with one token a character; chat messages get a mark before and after."""

    pad_token_id = 0
    eos_token_ids = (1, 9)
    vocab_size = 256

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))

    def apply_template(self, messages, add_generation_prompt=True):
        text = "".join(f"<{message['content']}>" for message in messages)
        return self.encode(text + ("?" if add_generation_prompt else ""))

    def save_pretrained(self, directory):
        raise NotImplementedError


def texts(tokenized):
    return [Letters().decode(ids) for ids in tokenized.prompts]


PLAIN = PromptRecord(prompt="1+1=", response="2", ground_truth="2")
CHAT = PromptRecord(messages=({"role": "system", "content": "s"}, {"role": "user", "content": "hi"}), ground_truth="")


def test_plain_prompts_chats_and_templates():
    assert texts(tokenize_prompts([PLAIN, CHAT], Letters(), 20)) == ["1+1=", "<s><hi>?"]
    assert texts(tokenize_prompts([PLAIN, CHAT], Letters(), 20, template="Q {prompt}!")) == ["Q 1+1=!", "<s><Q hi!>?"]
    with pytest.raises(ConfigError, match="lacks {prompt}"):
        tokenize_prompts([PLAIN], Letters(), 20, template="Q")


def test_prompts_that_are_too_long():
    records = [PLAIN, PromptRecord(prompt="123456", ground_truth="")]
    with pytest.raises(DataError, match=r"Prompt 1 \('123456'\) has 6 tokens, more than data.max_prompt_length, 4"):
        tokenize_prompts(records, Letters(), 4)
    assert texts(tokenize_prompts(records, Letters(), 4, truncation="left")) == ["1+1=", "3456"]
    assert texts(tokenize_prompts(records, Letters(), 4, truncation="right")) == ["1+1=", "1234"]
    kept = tokenize_prompts(records, Letters(), 4, filter_overlong=True)
    assert (len(kept), kept.records) == (1, [PLAIN])
    assert len(tokenize_prompts([records[1], PLAIN, PLAIN, PLAIN], Letters(), 4, filter_overlong=True, limit=2)) == 2
    with pytest.raises(DataError, match="all 2 prompts are longer than 3"):
        tokenize_prompts(records, Letters(), 3, filter_overlong=True)
    with pytest.raises(ConfigError, match="data.truncation"):
        tokenize_prompts(records, Letters(), 4, truncation="middle")


def test_examples_end_with_the_end_token():
    got = tokenize_examples([PLAIN], Letters(), 10, 10)
    assert got.responses == [[ord("2"), 1]]
    assert tokenize_examples([PLAIN], Letters(), 10, 1).responses == [[ord("2")]]
    with pytest.raises(DataError, match='Row 0 .* has no "response"'):
        tokenize_examples([CHAT], Letters(), 10, 10)


def test_packing():
    torch = pytest.importorskip("torch")
    from plugrl.data import pack_sequences

    batch = pack_sequences([[5, 6], torch.tensor([7])], [[8], (9, 10)], pad_token_id=0, prompt_length=3)
    assert batch["input_ids"].tolist() == [[0, 5, 6, 8, 0], [0, 0, 7, 9, 10]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert batch["response_mask"].tolist() == [[1, 0], [1, 1]]
    assert batch["responses"].tolist() == [[8, 0], [9, 10]]
    assert all(tensor.dtype is torch.int64 for tensor in batch.values())


def test_packing_an_empty_response():
    pytest.importorskip("torch")
    from plugrl.data import pack_sequences

    batch = pack_sequences([[5]], [[]], pad_token_id=0)
    assert batch["input_ids"].tolist() == [[5, 0]]
    assert batch["response_mask"].tolist() == [[0]]


def test_packing_errors():
    pytest.importorskip("torch")
    from plugrl.data import pack_sequences

    with pytest.raises(DataError, match="1 prompts with 2 responses"):
        pack_sequences([[1]], [[1], [2]], pad_token_id=0)
    with pytest.raises(DataError, match="0 prompts"):
        pack_sequences([], [], pad_token_id=0)
    with pytest.raises(DataError, match="no tokens"):
        pack_sequences([[1], []], [[1], [2]], pad_token_id=0)
    with pytest.raises(DataError, match="Row 1 has 3 tokens, more than the width 2"):
        pack_sequences([[1], [1]], [[1], [1, 2, 3]], pad_token_id=0, response_length=2)


def test_padding_numbers():
    torch = pytest.importorskip("torch")
    from plugrl.data.packing import pad_rows

    values, mask = pad_rows([torch.tensor([-0.5, -1.0]), []], 0.0)
    assert values.tolist() == [[-0.5, -1.0], [0.0, 0.0]]
    assert values.dtype is torch.float32
    assert mask.tolist() == [[1, 1], [0, 0]]
