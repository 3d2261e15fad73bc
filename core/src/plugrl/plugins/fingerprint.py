"""One short text that says which plugins a process has, and the difference between two such sets in words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple


class Row(NamedTuple):
    """What two processes must agree on about one plugin. Probe results are no part of it: a driver need not have a
    device that its workers have."""

    distribution: str
    version: str
    name: str
    value: str
    state: str

    @property
    def title(self) -> str:
        """Return ``plugrl-platform-acme 0.2``."""
        return f"{self.distribution or self.name} {self.version}".rstrip()


def fingerprint_of(rows: Iterable[Row]) -> str:
    """Return 16 hexadecimal digits that do not depend on the order of ``rows``."""
    import hashlib  # Here, because most commands show no fingerprint and need not wait for the cryptography library.

    return hashlib.sha256(encode_rows(rows).encode()).hexdigest()[:16]


def encode_rows(rows: Iterable[Row]) -> str:
    """Return the rows as one line of JSON, for an environment variable."""
    return json.dumps(sorted(rows), separators=(",", ":"))


def decode_rows(text: str | None) -> tuple[Row, ...]:
    """Return the rows of :func:`encode_rows`; none for None or what is no such text."""
    try:
        return tuple(Row(*row) for row in json.loads(text or "[]"))
    except (ValueError, TypeError):
        return ()


def describe_difference(here: Iterable[Row], there: Iterable[Row]) -> list[str]:
    """Say plugin by plugin how this process (``here``) differs from the driver (``there``)."""
    ours, theirs = ({(row.distribution, row.name): row for row in rows} for rows in (here, there))
    texts = []
    for key in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(key), theirs.get(key)
        if mine is None and other is not None:
            texts.append(f"lacks {other.title}, which the driver has")
        elif other is None and mine is not None:
            texts.append(f"has {mine.title}, which the driver has not")
        elif mine is not None and other is not None and mine != other:
            texts.append(_changed(mine, other))
    return texts


def _changed(mine: Row, other: Row) -> str:
    if mine.version != other.version:
        return f"has {mine.title}; the driver has {other.version}"
    if mine.state != other.state:
        return f"has {mine.title} {mine.state}; in the driver it is {other.state}"
    return f"has {mine.title} with the entry {mine.value}; the driver has {other.value}"
