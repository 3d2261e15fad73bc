"""Statistics of the data that a policy scales its actions and states by: ``model.norm_stats`` and ``unnorm_key``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.errors import ConfigError, nearest, one_of


def read_norm_stats(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``{name: statistics}`` of a mapping or of the file that a path names; empty for None.

    Raises ConfigError for a file that cannot be read or holds something else.
    """
    if given is None:
        return {}
    if not isinstance(given, str):
        return dict(given)
    path = Path(given).expanduser()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"model.norm_stats: {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ConfigError(f"model.norm_stats: {path} is not JSON: {error}.") from error
    if not isinstance(values, dict) or not all(isinstance(value, dict) for value in values.values()):
        raise ConfigError(f"model.norm_stats: {path} must hold statistics by the name of a data set.")
    return values


def statistics_of(norm_stats: str | Mapping[str, Any] | None, unnorm_key: str | None) -> Mapping[str, Any] | None:
    """Return the statistics of ``unnorm_key``, of the only data set where it is None; None without any statistics.

    Raises ConfigError, listing the data sets, for one that is not there or not named.
    """
    found = read_norm_stats(norm_stats)
    if not found:
        return None
    if unnorm_key is None:
        if len(found) > 1:
            raise ConfigError(f"model.unnorm_key: there are statistics of several data sets; name {one_of(found)}.")
        return next(iter(found.values()))
    if unnorm_key not in found:
        like = nearest(unnorm_key, found)
        hint = f' Did you mean "{like}"?' if like else ""
        raise ConfigError(f'model.unnorm_key: no statistics of "{unnorm_key}".{hint} There are: {one_of(found)}.')
    return found[unnorm_key]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first difference of two statistics of a data set that scales what a policy sees or does; empty: none.

    How many frames and episodes they are of is no such difference.
    """
    for part in ("action", "proprio"):
        old, new = dict(_numbers(part, before.get(part))), dict(_numbers(part, now.get(part)))
        for name in {**old, **new}:
            if name not in old or name not in new or not math.isclose(old[name], new[name], rel_tol=1e-6, abs_tol=1e-9):
                return f"{name} was {_told(old.get(name))} and is {_told(new.get(name))}"
    return ""


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield every number in nested statistics with its place."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _numbers(f"{name}[{index}]", item)
    elif isinstance(value, int | float):
        yield name, float(value)


def _told(value: float | None) -> str:
    return "not given" if value is None else f"{value:.6g}"
