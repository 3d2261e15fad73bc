"""One Ray for all tests of a run: import :func:`ray_session` in a ``conftest.py`` and ask for it in tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from plugrl.runtime.session import RaySession

_shared: list[RaySession] = []


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RaySession]:
    """Yield a started local session; groups that a test leaves open are closed at the end.

    Packages import this fixture each into their own conftest; they share the session of whoever comes first.
    """
    pytest.importorskip("torch")
    pytest.importorskip("ray")
    from plugrl.config.schema import ClusterConfig
    from plugrl.runtime.session import RaySession

    if _shared:
        yield _shared[0]
        return
    config = ClusterConfig(start_timeout_s=120.0, step_timeout_s=60.0)
    with RaySession(config, platform="cpu") as session:
        _shared.append(session)
        yield session
        _shared.clear()
