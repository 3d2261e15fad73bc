"""The route of weights from one rank of a group to every rank of another, and which kind of syncer serves it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.errors import ConfigError
from plugrl.runtime.losses import Launch
from plugrl.runtime.sync.registry import AUTO, get_weight_syncer

if TYPE_CHECKING:
    import torch

    from plugrl.runtime.group import WorkerGroup

logger = logging.getLogger(__name__)

MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class WeightRoute:
    """How the weights of one sender reach its receivers; made by :func:`weight_route`, given to the workers.

    kind: the registered syncer. remote: the receivers that do not share the sender's node; they need ``mailbox``, a
    Ray actor. timeout_s: seconds that one side waits for the next sign of life of the other. options: the settings.
    sender, receiver_launch: launch and rank of the sender, and the launch of the receivers, where they are workers.
    """

    name: str
    directory: str
    receivers: int
    kind: str = "bucket"
    remote: tuple[int, ...] = ()
    mailbox: Any = None
    bucket_bytes: int = 256 * MEGABYTE
    timeout_s: float = 120.0
    options: WeightSyncConfig = WeightSyncConfig()
    sender: tuple[Launch, int] | None = None
    receiver_launch: Launch | None = None

    @property
    def local(self) -> tuple[int, ...]:
        """The receivers on the sender's node."""
        return tuple(index for index in range(self.receivers) if index not in self.remote)

    @property
    def socket_path(self) -> str:
        """Where sender and receivers of one node meet."""
        return str(Path(self.directory) / f"{self.name}.sock")

    @property
    def dtype(self) -> torch.dtype | None:
        """What floating-point tensors are cast to on the way, None for nothing."""
        if self.options.dtype is None:
            return None
        import torch

        dtype: torch.dtype = getattr(torch, self.options.dtype)
        return dtype


def weight_route(
    sender: WorkerGroup,
    receivers: WorkerGroup,
    *,
    bucket_megabytes: int = 256,
    timeout_s: float = 120.0,
    sender_rank: int = 0,
    shared_memory: bool = True,
    options: WeightSyncConfig | None = None,
) -> WeightRoute:
    """Return the route from one rank of a group to every rank of another; receiver ``i`` is rank ``i``.

    ``shared_memory=False`` treats all receivers as if they were on other nodes.

    Raises:
        NotRegistered: no syncer has the name ``options.type``.
        ConfigError: that syncer cannot serve these receivers.
    """
    options = options or WeightSyncConfig()
    home = sender.seats[sender_rank].node.node_id
    remote = tuple(rank for rank, seat in enumerate(receivers.seats) if not shared_memory or seat.node.node_id != home)
    route = WeightRoute(
        name=f"{sender.name}{sender.generation}-{receivers.name}{receivers.generation}"[:40],
        directory=str(sender.session.run_directory),
        receivers=receivers.size,
        kind=options.type,
        remote=remote,
        bucket_bytes=bucket_megabytes * MEGABYTE,
        timeout_s=timeout_s,
        options=options,
        sender=(Launch(group=sender.name, generation=sender.generation), sender_rank),
        receiver_launch=Launch(group=receivers.name, generation=receivers.generation),
    )
    if options.type == AUTO:
        kind, reason = choose(route)
        logger.info("Weights go from %s to %s by %s: %s.", sender.name, receivers.name, kind, reason)
        route = replace(route, kind=kind)
    problem = get_weight_syncer(route.kind).problem(route)
    if problem is not None:
        raise ConfigError(f"weight_sync.type: {route.kind} cannot be used here, {problem}; use auto.")
    if remote or route.kind == "full":
        from plugrl.runtime.sync.mailbox import start_mailbox

        route = replace(route, mailbox=start_mailbox(receivers.size, home))
    return route


def choose(route: WeightRoute) -> tuple[str, str]:
    """Return the kind that ``auto`` stands for on this route, and why."""
    if not route.remote:
        return "handle", "all receivers are on the sender's node"
    names = ", ".join(map(str, route.remote))
    return "bucket", f"rank {names} of the receivers cannot map memory of the sender's node"
