"""Channels over endpoints of one process: the same sockets, threads and shared memory as between processes."""

import itertools
import tempfile
import threading
from pathlib import Path

import pytest

from plugrl.runtime.channel.channel import Channel, create_on
from plugrl.runtime.channel.record import ChannelOptions
from plugrl.runtime.channel.server import ChannelServer
from plugrl.runtime.transport import Endpoint, EndpointConfig

SECRET = b"0123456789abcdef" * 2


class Run:
    """A server of channels and as many participants as a test asks for."""

    def __init__(self, folder):
        self.folder = folder
        self.names = itertools.count()
        self.opened = []
        self.host = self.endpoint("host")
        self.server = ChannelServer(self.host)

    def endpoint(self, name="", **settings):
        basic = {"name": name or f"w:{next(self.names)}", "run_id": "r", "folder": self.folder, "secret": SECRET}
        self.opened.append(Endpoint(EndpointConfig(**basic | settings)))
        return self.opened[-1]

    def create(self, name="c", endpoint=None, **options):
        exist_ok = options.pop("exist_ok", False)
        options["balancer_options"] = tuple(options.pop("balancer_options", {}).items())
        owner = endpoint or self.endpoint()
        return create_on(owner, self.host.address, name, ChannelOptions(**options), exist_ok=exist_ok, timeout=20)

    def connect(self, name="c", endpoint=None):
        return Channel(endpoint or self.endpoint(), self.host.address, name)


@pytest.fixture
def run():
    before = set(threading.enumerate())  # a Ray session of other tests may be open
    with tempfile.TemporaryDirectory(prefix="plugrl-t-") as folder:
        made = Run(folder)
        yield made
        for endpoint in made.opened:
            endpoint.close()
        assert not list(Path(folder).iterdir()), "a socket was left behind"
        new = set(threading.enumerate()) - before
        left = [thread.name for thread in new if thread.name.startswith("plugrl-endpoint")]
        assert not left, f"threads are left: {left}"
