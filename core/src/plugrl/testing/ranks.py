"""The pool of ranks for tests: import the fixture :func:`ranks` in a ``conftest.py`` and ask for it in tests::

    def sum_of_ranks(rank: int, world: int) -> float: ...

    def test_sum(ranks: RankPool) -> None:
        assert ranks.run(sum_of_ranks, world=4) == [10.0] * 4
        assert ranks.run(sum_of_ranks, world=2, platform="acme") == [3.0] * 2
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugrl.testing.fork_server import shared_server
from plugrl.testing.rank_pool import RankError, RankPool, message

__all__ = ["RankError", "RankPool", "message", "ranks"]


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Yield the pool of the session; packages import this fixture each into their own conftest and share the pool."""
    pytest.importorskip("torch")
    if _shared:
        yield _shared[0]
        return
    pool = RankPool(server=shared_server())
    _shared.append(pool)
    try:
        yield pool
    finally:
        _shared.clear()
        pool.close()


_shared: list[RankPool] = []
