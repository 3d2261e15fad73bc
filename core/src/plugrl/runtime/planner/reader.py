"""Reading case files: every problem is collected with its path, and one error tells them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from plugrl.errors import ConfigError, nearest

T = TypeVar("T")

_MOST_SHOWN = 20
"""Problems that a message lists; a table of thousands of wrong cells must not fill the screen."""


class Reader:
    """Takes values out of plain data and remembers what is wrong with them.

    A method that finds a problem returns a harmless value, so that reading goes on; :meth:`finish` raises at the end.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.problems: list[str] = []

    def problem(self, path: str, text: str) -> None:
        """Remember one problem."""
        self.problems.append(f"{path or self._what}: {text}")

    def finish(self) -> None:
        """Raise ConfigError with all problems, if there are any."""
        if not self.problems:
            return
        shown = self.problems[:_MOST_SHOWN]
        if len(self.problems) > len(shown):
            shown.append(f"and {len(self.problems) - len(shown)} more problems.")
        raise ConfigError("\n".join(shown))

    def mapping(self, value: Any, path: str) -> Mapping[str, Any]:
        """Return a mapping, an empty one where there is none."""
        if isinstance(value, Mapping):
            return value
        self.problem(path, f"must be a mapping, not {_shown(value)}.")
        return {}

    def items(self, value: Any, path: str, *, at_least: int = 0) -> list[Any]:
        """Return a list, an empty one where there is none."""
        if not isinstance(value, list | tuple):
            self.problem(path, f"must be a list, not {_shown(value)}.")
            return []
        if len(value) < at_least:
            self.problem(path, "must not be empty.")
        return list(value)

    def field(
        self, mapping: Mapping[str, Any], key: str, path: str, read: Callable[[Any, str], T], empty: Callable[[], T]
    ) -> T:
        """Read one required field by ``read(value, path)``; an empty value where it is missing."""
        inner = f"{path}.{key}" if path else key
        if key in mapping:
            return read(mapping[key], inner)
        close = nearest(key, (str(name) for name in mapping))
        hint = f" Is it {close!r}, which is not a field?" if close and close not in _FIELDS else ""
        self.problem(inner, f"is missing.{hint}")
        return empty()

    def integer(self, at_least: int | None = 0) -> Callable[[Any, str], int]:
        """Return a reader of one whole number that is not below ``at_least``."""

        def read(value: Any, path: str) -> int:
            if type(value) is int and (at_least is None or value >= at_least):
                return value
            bound = "" if at_least is None else f" of at least {at_least}"
            self.problem(path, f"must be a whole number{bound}, not {_shown(value)}.")
            return at_least or 0

        return read

    def text(self, value: Any, path: str) -> str:
        """Return a text that is not empty."""
        if isinstance(value, str) and value:
            return value
        self.problem(path, f"must be a name, not {_shown(value)}.")
        return ""

    def row(self, value: Any, path: str) -> dict[int, int]:
        """Return a table of non-negative whole numbers by a positive one; keys are decimal texts or whole numbers."""
        given = self.mapping(value, path)
        try:
            row = {int(key): number for key, number in given.items()}
        except (TypeError, ValueError):
            row = {}
        if len(row) == len(given) and min(row, default=1) > 0 and _all_natural(row):
            return row
        return self._careful_row(given, path)

    def table(self, value: Any, path: str) -> dict[int, dict[int, int]]:
        """Return a table of rows by a positive whole number."""
        given = self.mapping(value, path)
        plain = _plain_table(given)
        if plain is not None:
            return plain
        rows = {}
        for key, row in given.items():
            number = self._key(key, path)
            if number in rows:
                self.problem(f"{path}.{key}", f"{number} stands there twice.")
            rows[number] = self.row(row, f"{path}.{key}")
        return rows

    def _careful_row(self, given: Mapping[Any, Any], path: str) -> dict[int, int]:
        row: dict[int, int] = {}
        for key, value in given.items():
            number = self._key(key, path)
            if number in row:
                self.problem(f"{path}.{key}", f"{number} stands there twice.")
            row[number] = self.integer(0)(value, f"{path}.{key}")
        return row

    def _key(self, key: Any, path: str) -> int:
        try:
            number = int(key)
        except (TypeError, ValueError):
            number = 0
        if number < 1 or isinstance(key, bool | float):
            self.problem(f"{path}.{key}", "the key must be a positive whole number.")
        return number


_FIELDS = {"devices", "items", "chunks", "capacity_mib", "components", "edges", "name", "time_us", "resident_mib",
           "work_mib", "onload_us", "offload_us", "rounds", "slices", "env", "policy", "phases", "chunk", "stages",
           "swapped", "id", "kind", "expected", "evaluations", "loops", "mode"}  # fmt: skip


def _plain_table(given: Mapping[Any, Any]) -> dict[int, dict[int, int]] | None:
    """Read a table without a fault at once; None for one that has to be looked at row by row.

    Most rows of a table have the same keys, which are then read once.
    """
    names: tuple[Any, ...] = ()
    numbers: list[int] = []
    every: list[Any] = []
    rows: dict[int, dict[int, int]] = {}
    try:
        for number, row in zip(_plain_keys(tuple(given)), given.values(), strict=True):
            if (found := tuple(row)) != names:
                names, numbers = found, _plain_keys(found)
            values = row.values()
            every += values
            rows[number] = dict(zip(numbers, values, strict=True))
    except (AttributeError, TypeError, ValueError):
        return None
    return rows if set(map(type, every)) <= {int} and min(every, default=0) >= 0 else None


def _plain_keys(names: tuple[Any, ...]) -> list[int]:
    """Return different positive whole numbers. Raises ValueError."""
    numbers = list(map(int, names))
    if not set(map(type, names)) <= {str, int} or len(set(numbers)) < len(numbers) or min(numbers, default=1) < 1:
        raise ValueError(names)
    return numbers


def _all_natural(row: Mapping[int, Any]) -> bool:
    values = row.values()
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
