"""YAML: plain values as YAML 1.2 has them, lines of keys, readable errors."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from plugrl.config.show import dump_yaml
from plugrl.config.yaml_source import parse_value, read_document
from plugrl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("5E3", 5000.0),
        (".5", 0.5),
        ("-3", -3),
        ("007", 7),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("[1, 2]", [1, 2]),
        ("{a: 1e-3}", {"a": 1e-3}),
        ("'1'", "1"),
        ("12+34=", "12+34="),
    ],
)
def test_plain_values_follow_yaml_1_2(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("value", ["1e-6", "007", "true", "no", "null", "", "1:30", "0x1f", "2024-01-01", "~", "a: b"])
def test_dumped_texts_load_as_texts(value: str) -> None:
    assert parse_value(dump_yaml({"key": value})) == {"key": value}


def test_dumped_numbers_load_exactly() -> None:
    values = [1e-6, 1e22, 0.1, -3.0, 5, 1 / 3, math.pi]
    assert parse_value(dump_yaml(values)) == values


def test_lines_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# comment\na:\n  b: 1\n  c: {d: 2}\n")
    document, lines = read_document(path)
    assert document == {"a": {"b": 1, "c": {"d": 2}}}
    assert lines == {("a",): 2, ("a", "b"): 3, ("a", "c"): 4, ("a", "c", "d"): 4}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: [1, 2\nb: 3\n", ["line 2", "not valid YAML"]),
        ("a: 1\nb: 2\na: 3\n", ["a stands twice", "lines 1 and 3"]),
        ("- 1\n- 2\n", ["must be a mapping"]),
        ("a: !!python/object/apply:os.system [ls]\n", ["not valid YAML"]),
        ("a: 1\n\tb: 2\n", ["not valid YAML", "line 2"]),
    ],
)
def test_a_bad_document_is_one_message_with_file_and_line(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert "bad.yaml" in str(caught.value)
    assert all(part in str(caught.value) for part in parts)


def test_an_empty_document_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert read_document(path) == ({}, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: No such file"):
        read_document(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x {b: *x}", "alias of itself"),
        ("a: &x [*x]", "alias of itself"),
        ("a: " + "[" * 2000 + "]" * 2000, "nested too deeply"),
        ("a: \0", "special characters"),
        ("a: !!int x", "invalid literal"),
        ("a: !!bool x", "x"),
        ("a: !!timestamp x", "groupdict"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: [{b: 1, b: 2}]", "a.0.b stands twice"),
    ],
)
def test_whatever_pyyaml_raises_is_one_message(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_document(path)
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_value(text)


def test_a_text_that_is_a_comment_is_not_taken_for_nothing() -> None:
    with pytest.raises(ConfigError, match="is a comment in YAML"):
        parse_value("# {prompt}")


def test_a_name_that_no_file_can_have_is_one_message() -> None:
    with pytest.raises(ConfigError, match="null byte"):
        read_document(Path("a\0b"))
