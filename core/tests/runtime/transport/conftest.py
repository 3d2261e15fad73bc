"""Endpoints of one test in one process: they meet over real sockets and real shared memory."""

import itertools
import tempfile
import threading
from pathlib import Path

import pytest

from plugrl.runtime.transport import Endpoint, EndpointConfig

SECRET = b"0123456789abcdef" * 2


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="plugrl-t-") as path:
        yield path
        assert not list(Path(path).iterdir()), "a socket was left behind"


@pytest.fixture
def open_endpoint(folder):
    """Open endpoints; all are closed at the end, and no thread of theirs is left."""
    opened = []
    before = set(threading.enumerate())  # a Ray session of other tests may be open
    numbers = itertools.count()

    def make(name="", **settings):
        basic = {"name": name or f"peer:{next(numbers)}", "run_id": "r", "folder": folder, "secret": SECRET}
        opened.append(Endpoint(EndpointConfig(**basic | settings)))
        return opened[-1]

    yield make
    for endpoint in opened:
        endpoint.close()
    new = set(threading.enumerate()) - before
    left = [thread.name for thread in new if thread.name.startswith("plugrl-endpoint")]
    assert not left, f"threads are left: {left}"
