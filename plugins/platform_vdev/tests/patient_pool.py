"""A pool of ranks for the tests of this package."""

from __future__ import annotations

from typing import Any

from plugrl.testing.rank_pool import RankPool


class PatientPool(RankPool):
    """A pool whose calls may take long: the first ones import much, and other work may share the processors."""

    def run(self, *args: Any, timeout_s: float = 240.0, **kwargs: Any) -> list[Any]:
        """As the parent's, with a later deadline."""
        return super().run(*args, timeout_s=timeout_s, **kwargs)
