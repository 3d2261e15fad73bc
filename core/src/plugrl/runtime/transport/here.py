"""The endpoint of this process: configured once by whoever starts it, opened when it is first asked for."""

from __future__ import annotations

import atexit
import os
import threading

from plugrl.errors import TransportError
from plugrl.runtime.transport.address import EndpointConfig
from plugrl.runtime.transport.endpoint import Endpoint

_mutex = threading.Lock()
_config: EndpointConfig | None = None
_endpoint: Endpoint | None = None


def configure(config: EndpointConfig) -> None:
    """Say what :func:`current` opens. An endpoint that is open already is closed first."""
    global _config
    shut_down()
    _config = config


def current() -> Endpoint:
    """Return the endpoint of this process. Raises TransportError when nobody configured one."""
    global _endpoint
    with _mutex:
        if _endpoint is None:
            if _config is None:
                raise TransportError("This process takes part in no run: it was not started by a Ray session.")
            _endpoint = Endpoint(_config)
            atexit.register(shut_down)
        return _endpoint


def shut_down() -> None:
    """Close the endpoint of this process, if one is open, and forget its configuration."""
    global _config, _endpoint
    with _mutex:
        endpoint, _endpoint, _config = _endpoint, None, None
    if endpoint is not None:
        atexit.unregister(shut_down)
        endpoint.close()


def _after_fork() -> None:
    """A forked child has no thread of its parent's endpoint, and must not close its sockets with a goodbye."""
    global _config, _endpoint, _mutex
    _mutex = threading.Lock()
    _config = _endpoint = None
    atexit.unregister(shut_down)


os.register_at_fork(after_in_child=_after_fork)
