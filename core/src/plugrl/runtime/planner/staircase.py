"""The lower left border of a set of points: which pairs have no other pair at or below them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Staircase:
    """Points (x, y) of which none is at or below another in both; x ascends, y descends."""

    def __init__(self) -> None:
        self._x: list[int] = []
        self._y: list[int] = []

    def covers(self, x: int, y: int) -> bool:
        """Whether some point has neither a larger x nor a larger y."""
        position = bisect_right(self._x, x)
        return position > 0 and self._y[position - 1] <= y

    def add(self, x: int, y: int) -> None:
        """Add a point that is not covered; those that it covers leave."""
        start = bisect_left(self._x, x)
        end = start
        while end < len(self._x) and self._y[end] >= y:
            end += 1
        self._x[start:end] = [x]
        self._y[start:end] = [y]
