"""The reader of reference cases: what it compares, what it skips, and what it says."""

from __future__ import annotations

import json
import math

import pytest

from plugrl.testing import reference
from plugrl.testing.reference import Case, cases


def case(expected, **keys) -> Case:
    return Case(id="c.1", op="f", given={}, expected=expected, **keys)


def test_values_of_any_kind_are_compared_within_the_tolerance():
    torch = pytest.importorskip("torch")
    wanted = case({"a": [[1.0, "-inf"], ["nan", None]], "b": True, "c": "text", "d": {"e": 2}, "f": None})
    wanted.check({"a": torch.tensor([[1.000001, -math.inf], [math.nan, 5.0]]), "b": True, "c": "text", "d": {"e": 2},
                  "f": None})  # fmt: skip
    for actual in ([1.1], [math.nan], [1.0, 1.0], 1.0, ["1.0"]):
        with pytest.raises(AssertionError, match="c.1: a"):
            case({"a": [1.0]}).check({"a": actual})
    with pytest.raises(AssertionError, match="a is 3, expected None"):
        case({"a": None}).check({"a": 3})
    case({"a": [10.0]}, tolerance=1.0).check({"a": [10.9]})
    with pytest.raises(AssertionError, match="nothing was computed for 'b'"):
        case({"b": 1}).check({"a": 1})


def test_masked_entries_do_not_count():
    wanted = case({"a": [[1.0, 2.0]]}, compare="mask")
    wanted.check({"a": [[1.0, 9.0]]}, mask=[[1, 0]])
    with pytest.raises(AssertionError):
        wanted.check({"a": [[1.0, 9.0]]}, mask=[[0, 1]])


def test_expected_errors_are_checked_by_class_and_text():
    wanted = case({"raises": "TypeError|ValueError", "message_all": ["b", "c"], "message_any": ["x", "y"]})
    with wanted.outcome():
        raise ValueError("a b c x")
    with pytest.raises(AssertionError, match="does not say 'c'"), wanted.outcome():
        raise ValueError("a b x")
    with pytest.raises(AssertionError, match="none of"), wanted.outcome():
        raise ValueError("b c")
    with case({"a": 1}).outcome():
        pass


def test_cases_come_by_operation_and_are_skipped_without_a_folder(tmp_path, monkeypatch):
    line = {"op": "add", "cases": [{"id": "add.1", "in": {"x": 1}, "out": {"y": 2}, "tol": 0.5, "note": "n"}]}
    (tmp_path / reference.CASES).write_text(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path))
    found = cases("add")
    assert [param.id for param in found] == ["add.1", "add.1"] and found[0].values[0].tolerance == 0.5
    with pytest.raises(LookupError, match="sub"):
        cases("sub")
    monkeypatch.delenv(reference.FOLDER_VARIABLE)
    monkeypatch.setattr(reference, "__file__", str(tmp_path / "core/src/plugrl/testing/reference.py"))
    assert [mark.name for mark in cases("add")[0].marks] == ["skip"]
    with pytest.raises(pytest.skip.Exception, match=reference.FOLDER_VARIABLE):
        reference.golden_folder()
