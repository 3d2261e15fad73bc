"""How the processes of a run reach each other: the directory, each one's endpoint, and news of those that are lost."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.config.schema.cluster import TransportConfig
from plugrl.runtime import transport
from plugrl.runtime.address import WorkerAddress
from plugrl.runtime.directory import Directory
from plugrl.runtime.flow.device_home import HOME, DeviceHome
from plugrl.runtime.flow.device_turns import DeviceTurns
from plugrl.runtime.losses import LOSSES, use_directory
from plugrl.runtime.peers import Peers
from plugrl.runtime.rendezvous import join_store
from plugrl.runtime.rundir import create_run_directory, remove_run_directory
from plugrl.runtime.transport.device_paths import DevicePaths

if TYPE_CHECKING:
    from plugrl.platforms import PlatformBase
    from plugrl.runtime.group import WorkerGroup
    from plugrl.runtime.session import RaySession
    from plugrl.runtime.worker import WorkerContext

LOOPBACK = "127.0.0.1"
_LOOK_EVERY_S = 0.5
_KEPT_LOSSES = 256
_MEET_S = 60.0
"""Limit of the platform's collectives between two workers."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunAccess:
    """What a worker needs to meet the others: where the directory is, and the secret that all of them know."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    transport: TransportConfig = TransportConfig()


def limits_of(settings: TransportConfig) -> dict[str, Any]:
    """Return what a configuration says of endpoints, as :class:`EndpointConfig` names it."""
    return {
        "flows": settings.flows,
        "inline_bytes": settings.inline_kib * 2**10,
        "memory_bytes": (settings.memory_mib or 0) * 2**20,
        "window_bytes": settings.window_mib * 2**20,
        "strict_device": settings.strict_device,
    }


class RunNetwork:
    """The driver's part. A thread looks at the workers between the driver's waits, and announces who is lost."""

    def __init__(self, session: RaySession) -> None:
        self._session = session
        ips = [node.ip for node in session.nodes if node.node_id == session.local_node_id]
        host = LOOPBACK if session.is_local or not ips else ips[0]
        self.directory = Directory.serve(host)
        self.access = RunAccess(
            host=host,
            port=self.directory.port,
            secret=secrets.token_bytes(32),
            transport=session.config.transport,
        )
        transport.configure(
            transport.EndpointConfig(
                name="driver",
                run_id=session.run_id,
                folder=str(session.run_directory),
                node=session.local_node_id,
                host=host,
                secret=self.access.secret,
                **limits_of(self.access.transport),
            )
        )
        DeviceHome(transport.current(), session.config.device_memory_mib)
        self.directory.publish(HOME, transport.current().address)
        transport.set_watch(session.check_alive)
        use_directory(self.directory)
        self._losses: deque[tuple[str, int, int, str]] = deque(maxlen=_KEPT_LOSSES)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._announce_losses, name="liveness", daemon=True)
        self._thread.start()

    @property
    def peers(self) -> Peers:
        """The workers as the driver reaches them."""
        return Peers(self.directory, transport.current(), None)

    def stop(self) -> None:
        """End the thread, the endpoint and the directory."""
        self._ended.set()
        self._thread.join()
        transport.set_watch(None)
        transport.shut_down()
        use_directory(None)
        del self.directory

    def add(self, group: WorkerGroup) -> None:
        """Let the ranks of a group be found."""
        self.directory.publish(f"group/{group.name}", {"generation": group.generation, "size": group.size})

    def remove(self, group: WorkerGroup) -> None:
        """Let nobody find a closed group."""
        current = self.directory.find(f"group/{group.name}")
        if current is not None and current["generation"] == group.generation:
            self.directory.withdraw(f"group/{group.name}")
        for rank in range(group.size):
            name = f"endpoint/{group.name}/{group.generation}/{rank}"
            address = self.directory.find(name)
            if address is not None:
                # Of a process that was killed the socket is left.
                Path(transport.parse_address(address).path).unlink(missing_ok=True)
            self.directory.withdraw(name)

    def _announce_losses(self) -> None:
        announced: set[tuple[str, int, int, int]] = set()
        while not self._ended.wait(_LOOK_EVERY_S):
            for finding in self._session.watch.find_all(self._session.open_groups(), noted=True):
                info, group = finding.info, finding.group
                key = (group.name, group.generation, info.rank, info.pid)
                if key not in announced:
                    announced.add(key)
                    state = "gone" if finding.seen.state == "dead" else finding.seen.state
                    self._losses.append((group.name, group.generation, info.rank, f"{info} is {state}."))
                    self.directory.publish(LOSSES, list(self._losses))


class WorkerNetwork:
    """A worker's part: its endpoint, published in the directory, and the other workers."""

    def __init__(self, context: WorkerContext, access: RunAccess, platform: PlatformBase) -> None:
        folder = Path(context.run_directory)
        # On the driver's node there is one folder for all.
        self._folder = None if folder.is_dir() else create_run_directory(context.run_id)
        transport.configure(
            transport.EndpointConfig(
                name=f"{context.group}:{context.rank}",
                run_id=context.run_id,
                folder=str(self._folder or folder),
                node=context.node_id,
                host=LOOPBACK if access.host == LOOPBACK else context.node_ip,
                secret=access.secret,
                device=context.device.name if context.device else "",
                **limits_of(access.transport),
            )
        )
        endpoint = transport.current()
        if context.device is not None:
            open_store = partial(join_store, access.host, access.port, _MEET_S)
            endpoint.use_devices(DevicePaths.of(platform, context.device.index), open_store, _MEET_S)
        self.directory = Directory.join(access.host, access.port)
        name = f"endpoint/{context.group}/{context.generation}/{context.rank}"
        self.directory.publish(name, endpoint.address)
        self.peers = Peers(self.directory, endpoint, WorkerAddress(context.group, context.rank))
        self.turns: DeviceTurns | None = None
        if context.device is not None:
            device = f"{context.device.name} of node {context.node_name or context.node_id}"
            self.turns = DeviceTurns(endpoint, partial(self.directory.lookup, HOME, _MEET_S), [device])
        transport.set_watch(self.peers.check)
        use_directory(self.directory)

    def close(self) -> None:
        """Close the endpoint."""
        transport.set_watch(None)
        transport.shut_down()
        use_directory(None)
        if self._folder is not None:
            remove_run_directory(self._folder)
