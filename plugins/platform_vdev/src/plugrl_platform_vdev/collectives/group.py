"""The process group ``vccl``: every collective goes over the host, on gloo, and says so in a log of its own.

torch takes a Python subclass of ProcessGroup for the whole group, so it serves tensors of the host too. Its methods
carry torch's names, the older ones included: which of them a caller uses depends on torch's release and on the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from plugrl_platform_vdev import faults, logs
from plugrl_platform_vdev.collectives.checks import check_one_device, check_operation, served_devices
from plugrl_platform_vdev.collectives.host_copy import HostCopy, hosts, read, room
from plugrl_platform_vdev.collectives.interference import Interference
from plugrl_platform_vdev.collectives.work import VcclWork

Tensors = list[torch.Tensor]
Issue = Callable[[], dist.Work]


class VcclGroup(dist.ProcessGroup):
    """One group of ranks. Every wait ends after ``timeout``."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, global_ranks: list[int]) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._timeout = rank, size, timeout
        self._global_ranks = global_ranks or list(range(size))
        self._group_name = self._group_description = ""
        # Any: torch tells type checkers nothing about the operations of a backend.
        self._inner: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._interference = Interference(rank, size, timeout)
        self._batch: list[VcclWork] | None = None
        """What was started between the two ends of a coalescing block, which has one work for all of it."""

    # ----------------------------------------------------------------- what torch asks of a group
    def getBackendName(self) -> str:
        """``vccl``; its mutant is honest here alone."""
        return "gloo" if faults.is_mutant("served_by_gloo") else "vccl"

    def getGroupName(self) -> str:
        """The name torch gave the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Keep the name."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """The description torch gave the group."""
        return self._group_description

    def setGroupDesc(self, description: str) -> None:
        """Keep the description."""
        self._group_description = description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in served_devices()]

    def _get_backend(self, device: torch.device) -> VcclGroup:
        return self

    def name(self) -> str:
        """As :meth:`getBackendName`."""
        return self.getBackendName()

    @property
    def supports_splitting(self) -> bool:
        """False: subgroups are made anew."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """False: each operation of a batch is started by itself."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Let waits end after ``timeout`` from now on."""
        self._timeout = timeout
        self._inner._set_default_timeout(timeout)
        self._interference = Interference(self._rank, self._size, timeout)

    def shutdown(self) -> None:
        """Deliver what is late, and let the transport go."""
        self._interference.flush()
        self._inner.shutdown()

    def abort(self) -> None:
        """End all collectives that are under way."""
        self._inner.abort()

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> VcclWork:
        batch, self._batch = self._batch, None
        return self._all(batch or [])

    # ----------------------------------------------------------------- reductions
    def allreduce(self, tensors: Tensors, opts: Any = None) -> VcclWork:
        """Reduce each tensor in place."""
        opts = opts or dist.AllreduceOptions()
        copies = self._contribute("all_reduce", tensors, opts)
        return self._work("all_reduce", copies, lambda: self._inner.allreduce(hosts(copies), opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> VcclWork:
        """Reduce several tensors in place."""
        return self._all([self.allreduce([tensor], _as_allreduce(opts)) for tensor in tensors])

    def reduce(self, tensors: Tensors, opts: Any) -> VcclWork:
        """Reduce in place on the root; other ranks keep what they have."""
        copies = self._contribute("reduce", tensors, opts)
        is_root = self._rank == opts.rootRank
        return self._work("reduce", copies if is_root else [], lambda: self._inner.reduce(hosts(copies), opts))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> VcclWork:
        """Reduce one input per rank; each rank gets its own."""
        opts = opts or dist.ReduceScatterOptions()
        copies = self._contribute("reduce_scatter", inputs[0], opts)
        return self._scattered("reduce_scatter", outputs[0], copies, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> VcclWork:
        """Reduce ``input``; each rank gets its part of the first dimension."""
        opts = opts or dist.ReduceScatterOptions()
        copies = self._contribute("reduce_scatter_single", [input], opts)
        parts = [HostCopy(part, part) for part in copies[0].host.reshape(-1).chunk(self._size)]
        if output.numel() * self._size != input.numel():
            raise ValueError(
                f"vccl: reduce_scatter of {input.numel()} elements over {self._size} ranks into {output.numel()}"
            )
        return self._scattered("reduce_scatter_single", output, parts, opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> VcclWork:
        """Several at once."""
        pairs = zip(outputs, inputs, strict=True)
        return self._all([self.reduce_scatter_single(output, input, opts) for output, input in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scattered(self, op: str, output: torch.Tensor, parts: list[HostCopy], opts: Any) -> VcclWork:
        result = HostCopy.for_result(output)
        flat = [part.host.reshape(result.host.shape) for part in parts]
        kept = [] if self._interference.keeps_output() else [result]
        if not kept and result.host is result.tensor:
            result.host = torch.empty_like(result.host)
        return self._work(op, kept, lambda: self._inner.reduce_scatter([result.host], [flat], opts))

    # ----------------------------------------------------------------- gathering
    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> VcclWork:
        """Every rank's tensor, in rank order."""
        opts = opts or dist.AllgatherOptions()
        self._begin("all_gather", inputs)
        sent, received = HostCopy.of(inputs[0]), room(outputs[0])
        order = self._interference.gathered(received)
        return self._work("all_gather", received, lambda: self._inner.allgather([hosts(order)], [sent.host], opts))

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> VcclWork:
        """Every rank's tensor, one after the other in ``output``."""
        opts = opts or dist.AllgatherOptions()
        self._begin("all_gather_single", [input])
        if output.numel() != self._size * input.numel():
            raise ValueError(
                f"vccl: all_gather of {input.numel()} elements from {self._size} ranks into {output.numel()}"
            )
        sent, received = HostCopy.of(input), HostCopy.for_result(output)
        parts = [HostCopy(part, part) for part in received.host.view(-1).chunk(self._size)] if input.numel() else []
        if not parts:
            return self._finished("all_gather_single")
        order = self._interference.gathered(parts)
        flat = sent.host.reshape(-1)
        return self._work("all_gather_single", [received], lambda: self._inner.allgather([hosts(order)], [flat], opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> VcclWork:
        """Several at once."""
        pairs = zip(outputs, inputs, strict=True)
        return self._all([self.all_gather_single(output, input, opts) for output, input in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> VcclWork:
        """Several at once; ``outputs`` has a list per rank."""
        return self._all([
            self.allgather([[rank[index] for rank in outputs]], [input], opts) for index, input in enumerate(inputs)
        ])

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> VcclWork:
        """Every rank's tensor, on the root."""
        self._begin("gather", inputs)
        sent, received = read(inputs), [room(row) for row in outputs]
        flat = [copy for row in received for copy in row]
        return self._work(
            "gather", flat, lambda: self._inner.gather([hosts(row) for row in received], hosts(sent), opts)
        )

    # ----------------------------------------------------------------- spreading
    def broadcast(self, tensors: Tensors, opts: Any) -> VcclWork:
        """The root's values, in place."""
        self._begin("broadcast", tensors)
        copies = read(tensors)
        landing = [] if self._rank == opts.rootRank else copies
        return self._work("broadcast", landing, lambda: self._inner.broadcast(hosts(copies), opts))

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> VcclWork:
        """Each rank's tensor from the root."""
        self._begin("scatter", outputs)
        sent, received = [read(row) for row in inputs], room(outputs)
        return self._work(
            "scatter", received, lambda: self._inner.scatter(hosts(received), [hosts(row) for row in sent], opts)
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> VcclWork:
        """Exchange parts of the first dimension."""
        opts = opts or dist.AllToAllOptions()
        self._begin("all_to_all_single", [input])
        sent, received = HostCopy.of(input), HostCopy.for_result(output)
        return self._work(
            "all_to_all_single",
            [received],
            lambda: self._inner.alltoall_base(received.host, sent.host, output_splits, input_splits, opts),
        )

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> VcclWork:
        """Exchange whole tensors, one with each rank."""
        self._begin("all_to_all", inputs)
        received = room(outputs)
        sent = torch.cat([copy.host.reshape(-1) for copy in read(inputs)])
        flat = torch.empty(sum(copy.host.numel() for copy in received), dtype=sent.dtype)
        sizes = [copy.host.numel() for copy in received]

        def land() -> None:
            for copy, part in zip(received, flat.split(sizes), strict=True):
                copy.host.copy_(part.view_as(copy.host))
                copy.land()

        splits = [tensor.numel() for tensor in inputs]
        work = self._inner.alltoall_base(flat, sent, sizes, splits, opts or dist.AllToAllOptions())
        return self._under_way("all_to_all", [work], land, outputs)

    # ----------------------------------------------------------------- between two ranks, and the barrier
    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> VcclWork:
        """Send to one rank. The work holds the host's copy until it has left."""
        self._begin("send", tensors)
        copies = read(tensors)
        return self._work("send", [], lambda: self._inner.send(hosts(copies), destination, tag), keep=copies)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> VcclWork:
        """Receive from one rank."""
        self._begin("recv", tensors)
        copies = room(tensors)
        return self._work("recv", copies, lambda: self._inner.recv(hosts(copies), source, tag))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> VcclWork:
        """Receive from whoever sends."""
        self._begin("recv", tensors)
        copies = room(tensors)
        return self._work("recv", copies, lambda: self._inner.recv_anysource(hosts(copies), tag))

    def barrier(self, opts: Any = None) -> VcclWork:
        """Done when all ranks have come."""
        self._begin("barrier", [])
        if self._interference.skips_barrier():
            return self._finished("barrier")
        return self._work("barrier", [], lambda: self._inner.barrier(opts or dist.BarrierOptions()))

    # ----------------------------------------------------------------- common
    def _begin(self, op: str, tensors: Sequence[torch.Tensor]) -> None:
        """Check and log a collective, and let faults strike. Raises ValueError and DistBackendError."""
        check_one_device(op, tensors)
        if not faults.is_mutant("served_by_gloo"):
            first = tensors[0] if tensors else None
            logs.write(
                "collectives",
                op=op,
                backend="vccl",
                dtype=None if first is None else str(first.dtype).removeprefix("torch."),
                elements=sum(tensor.numel() for tensor in tensors),
                device=None if first is None else str(first.device),
                group=self._group_name,
                ranks=self._global_ranks,
            )
        self._interference.on_start(op)

    def _contribute(self, op: str, tensors: Tensors, opts: Any) -> list[HostCopy]:
        """What this rank puts into a reduction."""
        check_operation(op, opts.reduceOp)
        self._begin(op, tensors)
        opts.reduceOp = self._interference.operation(opts.reduceOp)
        copies = read(tensors)
        self._interference.on_contribution(copies, opts.reduceOp)
        return copies

    def _work(self, op: str, landing: list[HostCopy], issue: Issue, keep: Any = None) -> VcclWork:
        """Start a collective on the host; ``landing`` is written when somebody waits for it."""

        def land(kept: Any = keep) -> None:
            for copy in landing:
                copy.land()

        try:
            inner = issue()
        except RuntimeError as error:
            raise dist.DistBackendError(f"{self._label(op)}: {error}") from error
        return self._under_way(op, [inner], land, [copy.tensor for copy in landing])

    def _under_way(self, op: str, parts: list[Any], land: Callable[[], None], results: Tensors) -> VcclWork:
        work = VcclWork(self._label(op), parts, self._interference.landing(land), results)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _all(self, works: list[VcclWork]) -> VcclWork:
        results = [tensor for work in works for tensor in work._results]
        return VcclWork(self._label("coalesced"), works, lambda: None, results)

    def _finished(self, op: str) -> VcclWork:
        return VcclWork(self._label(op), [], lambda: None, [])

    def _label(self, op: str) -> str:
        return f"vccl: {op} on rank {self._rank} of {self._size} in group {self._group_name!r}"


def _as_allreduce(opts: Any) -> Any:
    plain = dist.AllreduceOptions()
    if opts is not None:
        plain.reduceOp, plain.timeout = opts.reduceOp, opts.timeout
    return plain
