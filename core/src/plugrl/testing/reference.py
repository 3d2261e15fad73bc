"""Cases of a reference: what an operation must answer, one operation a line of a JSON file.

A line is ``{"op": ..., "cases": [{"id", "in", "out", "tol"?, "cmp"?, "note"?}]}``. In ``out``, ``"inf"``, ``"-inf"``
and ``"nan"`` stand for floats and ``null`` in a list for a value that is not compared; ``raises``, ``message_all`` and
``message_any`` describe an error. The files lie in the folder that ``PLUGRL_GOLDEN`` names, else in ``shared/golden``
beside the checkout; without one, the tests that need it are skipped::

    @pytest.mark.parametrize("case", cases("gae"))
    def test_gae(case: Case) -> None:
        with case.outcome():
            case.check({"returns": gae(**case.given)})
"""

from __future__ import annotations

import builtins
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER_VARIABLE = "PLUGRL_GOLDEN"
CASES = "models_fsdp_embodied.jsonl"
TOLERANCE = 1e-5
"""Absolute and relative, where a case names no other."""

_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Case:
    """One case of an operation; ``given`` and ``expected`` are the ``in`` and ``out`` of the file."""

    id: str
    op: str
    given: Mapping[str, Any]
    expected: Mapping[str, Any]
    tolerance: float = TOLERANCE
    compare: str | None = None
    note: str = ""

    @property
    def raises(self) -> bool:
        """Whether an error is expected."""
        return "raises" in self.expected

    @contextmanager
    def outcome(self) -> Iterator[None]:
        """Expect the error of the case inside the context, when it names one; else do nothing."""
        if not self.raises:
            yield
            return
        with pytest.raises(_error_classes(self.expected["raises"])) as caught:
            yield
        text = str(caught.value)
        for part in self.expected.get("message_all", ()):
            assert part in text, f"{self.id}: the error does not say {part!r}: {text}"
        any_of = self.expected.get("message_any", ())
        assert not any_of or any(part in text for part in any_of), f"{self.id}: none of {any_of} in: {text}"

    def check(self, actual: Any, *, mask: Any = None, keys: Sequence[str] | None = None) -> None:
        """Compare what was computed, a mapping of the names in ``out``, with all of it or with ``keys`` alone.

        Values may be tensors, arrays, numbers, texts and lists of them. ``mask``, where ``cmp`` is ``mask``: which
        entries count.
        """
        expected = self.expected if keys is None else {key: self.expected[key] for key in keys}
        valid = _plain(mask) if self.compare == "mask" else None
        for key, value in expected.items():
            assert key in actual, f"{self.id}: nothing was computed for {key!r}"
            self._compare(_plain(actual[key]), value, valid, key)

    def _compare(self, actual: Any, expected: Any, valid: Any, where: str) -> None:
        if valid is not None and not isinstance(valid, list) and not valid:
            return
        if expected is None and where.endswith("]"):
            return
        if isinstance(expected, list):
            assert isinstance(actual, list) and len(actual) == len(expected), (
                f"{self.id}: {where} is {actual!r}, expected {expected!r}"
            )
            for index, value in enumerate(expected):
                inner = valid[index] if isinstance(valid, list) else valid
                self._compare(actual[index], value, inner, f"{where}[{index}]")
        elif isinstance(expected, dict):
            for key, value in expected.items():
                self._compare(actual[key], value, None, f"{where}.{key}")
        else:
            assert self._equal(actual, expected), f"{self.id}: {where} is {actual!r}, expected {expected!r}"

    def _equal(self, actual: Any, expected: Any) -> bool:
        number = _WORDS.get(expected, expected) if isinstance(expected, str) else expected
        if isinstance(number, bool | str) or number is None:
            return bool(actual == number)
        if isinstance(actual, str):
            return False
        if math.isnan(number):
            return math.isnan(actual)
        return math.isclose(actual, number, rel_tol=TOLERANCE, abs_tol=self.tolerance)


def golden_folder() -> Path:
    """Return the folder of the reference's files; the test that asks is skipped where there is none."""
    folder = _folder()
    if folder is None:
        pytest.skip(f"no reference data: {FOLDER_VARIABLE} is not set and shared/golden is not beside the checkout")
    return folder


def cases(op: str, file: str = CASES) -> list[Any]:
    """Return the cases of an operation as parameters of a test, one skipped parameter where there are no files."""
    folder = _folder()
    if folder is None:
        return [pytest.param(None, id=op, marks=pytest.mark.skip(reason=f"no reference data in {FOLDER_VARIABLE}"))]
    found = _read(folder / file).get(op, ())
    if not found:
        raise LookupError(f"{folder / file} has no operation {op!r}")
    return [pytest.param(case, id=case.id) for case in found]


def _folder() -> Path | None:
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    package = Path(__file__).resolve().parents[2]
    beside = package.parent.parent.parent / "shared" / "golden"  # core/src in the checkout
    return beside if beside.is_dir() else None


@cache
def _read(file: Path) -> dict[str, tuple[Case, ...]]:
    found: dict[str, tuple[Case, ...]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        read = (
            Case(
                id=case["id"],
                op=entry["op"],
                given=case["in"],
                expected=case["out"],
                tolerance=case.get("tol", TOLERANCE),
                compare=case.get("cmp"),
                note=case.get("note", ""),
            )
            for case in entry["cases"]
        )
        found[entry["op"]] = (*found.get(entry["op"], ()), *read)
    return found


def _error_classes(names: str) -> tuple[type[Exception], ...]:
    return tuple(Exception if name == "error" else getattr(builtins, name) for name in names.split("|"))


def _plain(value: Any) -> Any:
    """Return tensors and arrays as lists and numbers, whatever holds them."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
