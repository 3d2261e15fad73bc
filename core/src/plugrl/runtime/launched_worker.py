"""The worker of a process that a launcher started, called as the workers of a group are.

Rank 0 runs the loop and tells the other ranks which method of their worker to call; every rank then calls it at the
same time.
"""

from __future__ import annotations

import socket
from typing import Any

from plugrl.errors import ConfigError
from plugrl.runtime.launched import Link
from plugrl.runtime.worker import Worker, WorkerContext

_LEAVE = "leave"


def worker_here(worker_class: type[Worker], link: Link, *, platform: Any, num_threads: int, **keywords: Any) -> Worker:
    """Build the worker of this process, with the process group that workers of a group have.

    ``keywords`` are those of its constructor. Collective: returns when every rank's worker is set up.

    Raises ConfigError when this node has fewer devices than ranks.
    """
    import torch

    from plugrl.plugins import hooks

    launch = link.launch
    available = platform.device_count()
    if available < launch.local_world_size:
        raise ConfigError(
            f"{launch.local_world_size} ranks were started on {socket.gethostname()}, which has {available} "
            f"{platform.device_name} devices (--nproc-per-node)."
        )
    platform.set_device(launch.local_rank)
    torch.set_num_threads(num_threads)
    worker = worker_class.__new__(worker_class)
    worker.context = WorkerContext(
        group="actor",
        rank=launch.rank,
        world_size=launch.world_size,
        local_rank=launch.local_rank,
        node_id=socket.gethostname(),
        node_ip=socket.gethostname(),
        device_index=launch.local_rank,
        num_threads=num_threads,
        master_address=launch.master_addr,
        master_port=launch.master_port,
        collective_timeout_s=link.timeout_s,
    )
    worker.platform = platform
    worker._store = link.store
    hooks.fire("on_worker_start", context=worker.context)
    if launch.world_size > 1:
        worker.init_process_group()
    worker.__init__(**keywords)  # type: ignore[misc]
    worker.setup()
    return worker


class RanksHere:
    """The ranks of a launcher, called from rank 0 as a worker group is called from its driver."""

    def __init__(self, worker: Worker, link: Link) -> None:
        self._worker = worker
        self._link = link
        self.size = link.launch.world_size

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method on every rank with arguments that JSON can hold; returns what rank 0's gave."""
        self._link.send(method, arguments)
        return getattr(self._worker, method)(**arguments)

    def settle(self) -> None:
        """Say that the call before was one in which all ranks took part together."""
        self._link.forget_calls()

    def close(self) -> None:
        """Let the other ranks leave, and close this rank's worker."""
        self._link.send(_LEAVE, {})
        self._worker.close()


def serve(worker: Worker, link: Link, timeout_s: float) -> None:
    """Ranks other than 0: call what rank 0 says until it lets go. Raises what a method raises, and WorkerTimeout."""
    while True:
        method, arguments = link.receive(timeout_s)
        if method == _LEAVE:
            worker.close()
            return
        getattr(worker, method)(**arguments)
