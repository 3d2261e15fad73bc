"""Tokenizers: characters, folders, chat templates."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from plugrl.errors import ConfigError, DataError
from plugrl.models.processor import TextProcessor
from plugrl_models_hf.tokenizer import build_processor, character_tokenizer


def test_characters_become_tokens_and_come_back(model_section) -> None:
    processor = build_processor(model_section())
    assert isinstance(processor, TextProcessor)
    ids = processor.encode("12+34=46 ")
    assert ids == [4, 5, 13, 6, 7, 15, 7, 9, 17]
    assert processor.decode([*ids, processor.eos_token_ids[0]]) == "12+34=46 "
    assert processor.decode([4, 1], skip_special_tokens=False) == "1<eos>"
    assert (processor.pad_token_id, processor.eos_token_ids, processor.vocab_size) == (0, (1,), 18)


def test_a_strange_character_is_named(model_section) -> None:
    with pytest.raises(DataError, match="no token for 'x'"):
        build_processor(model_section()).encode("1x2")


def test_an_alphabet_must_not_repeat() -> None:
    with pytest.raises(ConfigError, match="alphabet"):
        character_tokenizer("0110")


def test_a_character_tokenizer_is_saved_as_a_hugging_face_folder(tmp_path, model_section) -> None:
    processor = build_processor(model_section())
    processor.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode("1+2=3\n1") == processor.tokenizer.encode("1+2=3\n1")
    messages = [{"role": "user", "content": "1+1="}]
    assert loaded.apply_chat_template(messages, tokenize=False) == "1+1="
    again = build_processor(model_section(tokenizer=str(tmp_path)))
    assert again.encode("7*8=") == processor.encode("7*8=")


def test_the_chat_template_and_the_system_prompt_are_applied(model_section) -> None:
    template = "{% for m in messages %}{{ m['content'] }}={% endfor %}{% if add_generation_prompt %}+{% endif %}"
    processor = build_processor(model_section(chat_template=template, system_prompt="0"))
    ids = processor.apply_template([{"role": "user", "content": "12"}])
    assert processor.decode(ids) == "0=12=+"
    ids = processor.apply_template([{"role": "system", "content": "9"}, {"role": "user", "content": "1"}], False)
    assert processor.decode(ids) == "9=1="


def test_a_template_may_lie_in_a_file(tmp_path, model_section) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0]['content'] }}-")
    processor = build_processor(model_section(chat_template=str(file)))
    assert processor.decode(processor.apply_template([{"role": "user", "content": "5"}])) == "5-"
    with pytest.raises(ConfigError, match="neither a Jinja template nor a file"):
        build_processor(model_section(chat_template="nowhere.jinja"))


def test_without_a_template_conversations_are_refused(tmp_path, model_section) -> None:
    tokenizer = character_tokenizer("01")
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no chat template"):
        build_processor(model_section(tokenizer=str(tmp_path))).apply_template([{"role": "user", "content": "0"}])


def test_end_tokens_of_the_generation_configuration_count(tmp_path) -> None:
    character_tokenizer("01").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 1]}))
    assert build_processor({"path": str(tmp_path)}).eos_token_ids == (1, 4)


def test_a_tokenizer_with_code_is_refused(tmp_path, model_section) -> None:
    character_tokenizer("01").save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    content = json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": ["code.Mine", None]}}
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="trust_remote_code"):
        build_processor(model_section(tokenizer=str(tmp_path)))
