"""Records from JSONL and parquet; every malformed input is an error that names file and line."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from plugrl.data import convert_gsm8k, load_dataset, load_records
from plugrl.errors import ConfigError, DataError


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def settings(**given):
    defaults = {
        "source": "files",
        "source_options": {},
        "train_files": (),
        "val_files": (),
        "prompt_key": "prompt",
    }
    return SimpleNamespace(**{**defaults, **given})


def test_the_layouts_that_are_understood(tmp_path):
    verl = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    path = write(
        tmp_path / "mixed.jsonl",
        verl,
        "",
        {"prompt": "2+2=", "response": "4"},
        {"question": "3+3?", "answer": "6", "level": "easy"},
    )
    chat, plain, asked = load_records(path)
    assert chat.messages == ({"role": "user", "content": "1+1?"},)
    assert (chat.ground_truth, chat.data_source, chat.extra_info["ability"]) == ("2", "openai/gsm8k", "math")
    assert (chat.text, chat.prompt, chat.response) == ("1+1?", None, None)
    assert (plain.prompt, plain.response, plain.ground_truth, plain.data_source) == ("2+2=", "4", "4", "unknown")
    assert (asked.text, asked.ground_truth, asked.extra_info["level"]) == ("3+3?", "6", "easy")


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"prompt": "a\u2028b\x85c", "answer": "1"}')
    assert load_records(path)[0].prompt == "a\u2028b\x85c"


GOOD = '{"prompt": "p", "answer": "1"}'
MALFORMED = [
    ([GOOD, "{not json"], "line 2: not JSON .* column 2"),
    ([GOOD, "", "[1, 2]"], "line 3: expected a JSON object, got list"),
    ([GOOD, '{"promt": "p", "answer": "1"}'], 'line 2: no column "prompt". Did you mean data.prompt_key="promt"'),
    (['{"prompt": 5, "answer": "1"}'], 'line 1, "prompt": expected a text or a list of messages, got int'),
    (['{"prompt": "", "answer": "1"}'], "line 1.*empty"),
    (['{"prompt": [{"role": "user"}], "answer": "1"}'], 'line 1, "prompt": message 0 needs "role" and "content"'),
    ([GOOD, '{"prompt": "p"}'], "line 2: no ground truth"),
    (['{"prompt": "p", "answer": "1", "extra_info": "x"}'], 'line 1: "extra_info" must be an object'),
    ([""], "no rows"),
]


@pytest.mark.parametrize(("lines", "message"), MALFORMED)
def test_a_malformed_line_is_named(tmp_path, lines, message):
    path = write(tmp_path / "rows.jsonl", *lines)
    with pytest.raises(DataError, match=message) as caught:
        load_records(path)
    assert "rows.jsonl" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="nothing.jsonl: no such file"):
        load_records(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="folder"):
        load_records(tmp_path)
    with pytest.raises(DataError, match='unknown kind of file ".csv"'):
        load_records(write(tmp_path / "a.csv", "x"))
    (tmp_path / "latin.jsonl").write_bytes(GOOD.encode() + b'\n{"prompt": "\xe9"}\n')
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        load_records(tmp_path / "latin.jsonl")


def test_gsm8k_becomes_parquet_in_the_layout_of_verl(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    source = write(
        tmp_path / "train.jsonl",
        {"question": "How many?", "answer": "7 x 1000\n#### 7,000"},
        {"question": "And now?", "answer": "#### -12"},
    )
    assert convert_gsm8k(source, tmp_path / "out" / "train.parquet") == 2
    rows = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert rows[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'How many? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "7000"},
        "extra_info": {"split": "train", "index": 0, "answer": "7 x 1000\n#### 7,000", "question": "How many?"},
    }
    records = load_records(tmp_path / "out" / "train.parquet")
    assert [record.ground_truth for record in records] == ["7000", "-12"]
    assert records[1].extra_info["index"] == 1


def test_malformed_gsm8k_names_the_line(tmp_path):
    pytest.importorskip("pyarrow")
    source = write(
        tmp_path / "train.jsonl", {"question": "q", "answer": "#### 1"}, {"question": "q", "answer": "no marker"}
    )
    with pytest.raises(DataError, match="train.jsonl, line 2: .*#### number"):
        convert_gsm8k(source, tmp_path / "train.parquet")
    assert not (tmp_path / "train.parquet").exists()


def test_malformed_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="bad.parquet: not a readable parquet file"):
        load_records(tmp_path / "bad.parquet")
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "answer": ["1", None]}), tmp_path / "hole.parquet")
    with pytest.raises(DataError, match="hole.parquet, row 2: no ground truth"):
        load_records(tmp_path / "hole.parquet")


def test_the_files_data_set(tmp_path):
    rows = [{"text": f"{i}", "answer": i} for i in range(5)]
    path = write(tmp_path / "a.jsonl", *rows)
    config = settings(train_files=(str(path), str(path)), val_files=(str(path),), prompt_key="text")
    splits = load_dataset(config)
    assert [record.prompt for record in splits.train] == [str(i) for i in range(5)] * 2
    assert [record.ground_truth for record in splits.val] == list(range(5))
    with pytest.raises(ConfigError, match="data.train_files"):
        load_dataset(settings())


def test_a_gsm8k_folder_as_data_set(tmp_path):
    write(tmp_path / "train.jsonl", {"question": "q", "answer": "so\n#### 1"})
    write(tmp_path / "test.jsonl", {"question": "r", "answer": "#### 2"})
    splits = load_dataset(settings(source="gsm8k", source_options={"path": str(tmp_path), "instruction": ""}))
    assert (splits.train[0].text, splits.train[0].response, splits.val[0].ground_truth) == ("q", "so\n#### 1", "2")


def test_unknown_sources_and_options():
    with pytest.raises(ValueError, match='data.source: No dataset "arithmetics". Did you mean "arithmetic"'):
        load_dataset(settings(source="arithmetics"))
    with pytest.raises(ConfigError, match="data.source_options.num_training"):
        load_dataset(settings(source="arithmetic", source_options={"num_training": 3}))
