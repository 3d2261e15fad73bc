"""Where the channels of a run live: in one small process that the driver starts with the first channel.

A worker that makes the first channel serves it itself. Names stand in the run's directory, so two runs never meet:

    channels            address of the endpoint that serves new channels
    channel/NAME        address of the endpoint that serves this one
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from plugrl.errors import PeerLostError, PlugRLError, UserError
from plugrl.runtime import transport
from plugrl.runtime.channel.channel import Channel, create_on
from plugrl.runtime.channel.record import ChannelOptions
from plugrl.runtime.channel.server import ChannelServer
from plugrl.runtime.transport import EndpointConfig
from plugrl.runtime.transport.address import parse_address
from plugrl.runtime.transport.endpoint import Endpoint

if TYPE_CHECKING:
    from plugrl.runtime.directory import Directory
    from plugrl.runtime.session import RaySession

_HOME = "channels"
_START_S = 60.0


class Participant(Protocol):
    """A session or a worker: whoever knows the run's directory."""

    @property
    def directory(self) -> Directory:
        """Names of the run."""
        ...


class ChannelHost:
    """The process that serves the channels of a run. An actor; it does nothing but run its endpoint."""

    def __init__(self, config: EndpointConfig) -> None:
        import signal

        # On Ctrl-C the terminal signals every process; only the driver decides what happens then.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._endpoint = Endpoint(config)
        self._server = ChannelServer(self._endpoint)

    def address(self) -> str:
        """Return where the endpoint is."""
        return self._endpoint.address

    def close(self) -> None:
        """Say goodbye to everybody."""
        self._endpoint.close()


def create(
    owner: Participant, name: str, options: ChannelOptions, *, exist_ok: bool, timeout: float | None
) -> Channel:
    """Create a channel in the run of ``owner``. Raises UserError when the name is taken."""
    if not name or not all(c.isalnum() or c in "-_./" for c in name):
        raise UserError(f"{name!r} is no name for a channel: use letters, digits, '-', '_', '.' and '/'.")
    directory, endpoint = owner.directory, transport.current()
    known = directory.find(_entry(name))
    if known is not None and _is_gone(endpoint, known):
        directory.withdraw(_entry(name))
        known = None
    server = known if known is not None else _home(owner, directory, endpoint)
    channel = create_on(endpoint, server, name, options, exist_ok=exist_ok, timeout=timeout)
    directory.publish(_entry(name), server)
    channel.on_delete = lambda: directory.withdraw(_entry(name))
    return channel


def connect(owner: Participant, name: str, *, timeout: float | None) -> Channel:
    """Return a channel that somebody of the run has created, or creates in time. Raises RuntimeTimeout."""
    server = owner.directory.lookup(_entry(name), timeout, what=f"channel {name!r}")
    channel = Channel(transport.current(), server, name)
    channel.on_delete = lambda: owner.directory.withdraw(_entry(name))
    return channel


def _entry(name: str) -> str:
    return f"channel/{name}"


def _is_gone(endpoint: Endpoint, address: str) -> bool:
    """Whether an endpoint cannot be reached any more; connects to it to find out."""
    try:
        endpoint.hub.connection(parse_address(address), None)
    except PeerLostError:
        return True
    return False


def _home(owner: Participant, directory: Directory, endpoint: Endpoint) -> str:
    """Return who serves new channels; the first one who asks sees to it that somebody does."""
    from plugrl.runtime.session import RaySession

    known = directory.find(_HOME)
    if known is not None and not _is_gone(endpoint, known):
        return str(known)
    if known is not None:
        directory.withdraw(_HOME)
    if isinstance(owner, RaySession):
        address = _start_host(owner)
    else:
        ChannelServer(endpoint)
        address = endpoint.address
    if directory.claim(_HOME, address):
        return address
    return str(directory.lookup(_HOME, _START_S))


def _start_host(session: RaySession) -> str:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own = transport.current().config
    config = replace(own, name="channels", device="")
    options: dict[str, Any] = {
        "num_cpus": 0,
        "namespace": session.namespace,
        "max_restarts": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(session.local_node_id, soft=False),
    }
    host = ray.remote(ChannelHost).options(**options).remote(config)
    try:
        address = str(ray.get(host.address.remote(), timeout=session.config.start_timeout_s))
    except ray.exceptions.RayError as error:
        raise PlugRLError(f"The process that serves channels did not start: {error}") from error
    session.keep(host)
    return address
