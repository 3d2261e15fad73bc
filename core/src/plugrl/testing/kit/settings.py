"""What a package asks of the kit: the table ``[tool.plugrl-conformance]`` of its ``pyproject.toml``.

::

    [tool.plugrl-conformance]
    plugin = "acme"
    levels = ["L0-L3"]
    xfail = [
        {check = "dist.all_reduce.avg", reason = "driver 3.1 sums instead", issue = "https://acme.example/issues/7"},
    ]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugrl.errors import ConfigError, nearest, one_of
from plugrl.platforms.capabilities import LEVELS
from plugrl.testing.kit.checks import SUBJECTS

TABLE = "plugrl-conformance"
_FIELDS = ("plugin", "levels", "xfail", "modules", "env", "options")
_XFAIL_FIELDS = ("check", "reason", "issue")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The table, checked.

    Args:
        levels: empty where the table says nothing.
        xfail: id of a check or a capability -> why it is expected to fail, with the issue.
        modules: what else to import, for a vendor's own checks.
        env: variables of the processes of the levels.
        options: for checks that take some, such as tolerances.
    """

    plugin: str = ""
    levels: tuple[str, ...] = ()
    xfail: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


def find_settings(start: Path) -> Settings:
    """Return the table of the nearest ``pyproject.toml`` at or above ``start`` that has one; else an empty one."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            found = read_settings(path)
            if found is not None:
                return found
    return Settings()


def read_settings(path: Path) -> Settings | None:
    """Return the table of a ``pyproject.toml``, None where it has none. Raises ConfigError for a mistake in it."""
    try:
        tools = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    table = tools.get(TABLE) if isinstance(tools, dict) else None
    if table is None:
        return None
    where = f"{path}: [tool.{TABLE}]"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table.")
    _refuse_unknown(where, table, _FIELDS)
    levels = table.get("levels", [])
    return Settings(
        plugin=str(table.get("plugin", "")),
        levels=expand_levels([levels] if isinstance(levels, str) else levels),
        xfail=dict(_expected(where, row) for row in _rows(where, table.get("xfail", []))),
        modules=_names(where, table, "modules"),
        env=_texts(where, table, "env"),
        options=_texts(where, table, "options"),
    )


def expand_levels(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the levels that ``L0``, ``L1-L3``, ``all`` or the name of a kind stand for, in their order, each once.

    Raises ConfigError for anything else.
    """
    known = (*LEVELS, *SUBJECTS)
    found: set[str] = set()
    for text in (part.strip() for item in texts for part in str(item).split(",")):
        first, dash, last = text.partition("-")
        first, last = _canonical(first), _canonical(last)
        if text.lower() == "all":
            found |= set(known)
        elif not dash and first in known:
            found.add(first)
        elif dash and first in LEVELS and last in LEVELS and first <= last:
            found |= {level for level in LEVELS if first <= level <= last}
        else:
            like = nearest(first, known)
            hint = f" Did you mean {like}?" if like else ""
            raise ConfigError(f'"{text}" is no level.{hint} Levels: {", ".join(known)}, a range such as L0-L3, or all.')
    return tuple(level for level in known if level in found)


def _canonical(text: str) -> str:
    return text.strip().upper() if text.strip().upper() in LEVELS else text.strip().lower()


def _texts(where: str, table: dict[str, Any], name: str) -> dict[str, str]:
    values = table.get(name, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{where} {name} must be a table of names and values.")
    return {key: str(value) for key, value in values.items()}


def _names(where: str, table: dict[str, Any], name: str) -> tuple[str, ...]:
    values = table.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{where} {name} must be a list of names.")
    return tuple(values)


def _rows(where: str, rows: Any) -> list[Any]:
    if not isinstance(rows, list):
        raise ConfigError(f"{where} xfail must be a list of tables with {one_of(_XFAIL_FIELDS)}.")
    return rows


def _expected(where: str, row: Any) -> tuple[str, str]:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} xfail: {row!r} must be a table with check, reason and issue.")
    _refuse_unknown(f"{where} xfail", row, _XFAIL_FIELDS)
    missing = [name for name in _XFAIL_FIELDS if not str(row.get(name, "")).strip()]
    if missing:
        raise ConfigError(f"{where} xfail of {row.get('check', '?')} lacks {', '.join(missing)}: an expected failure "
                          "needs a reason and an issue where it is followed up.")  # fmt: skip
    return str(row["check"]), f"{row['reason']} ({row['issue']})"


def _refuse_unknown(where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            like = nearest(name, known)
            hint = f" Did you mean {like}?" if like else f" Known: {one_of(known)}."
            raise ConfigError(f"{where} has no field {name}.{hint}")
