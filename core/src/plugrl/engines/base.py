"""The contract of a training engine: what a worker may ask of FSDP, DDP, Megatron or a vendor's variant of them.

Method names follow verl's ``BaseEngine`` so that vendor engines port with small edits. An engine is built with
``(model_config, engine_config, optimizer_config, checkpoint_config)`` and found through
:class:`plugrl.engines.registry.EngineRegistry`, which refuses classes that leave an abstract member open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from plugrl.engines.state import Block, EngineState, StateParts, StateSpec
from plugrl.engines.topology import Topology
from plugrl.engines.wrap_plan import WrapPlanTable
from plugrl.errors import UnsupportedCapability
from plugrl.metric import Metric

Batch: TypeAlias = Mapping[str, torch.Tensor]
"""Row-aligned tensors, each ``[B, ...]``."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How an engine walks through a batch.

    micro_batch_size: rows of a micro-batch, None for all rows at once.
    max_tokens: token budget of a micro-batch (tokens under ``attention_mask``); overrides ``micro_batch_size``.
    forward_type: which forward of the policy runs, see :meth:`plugrl.models.base.BasePolicy.forward`.
    forward_kwargs: handed to that forward, for example ``temperature`` or ``compute_entropy``.
    window: batches whose gradients make one optimizer step; the loss of each is divided by it.
    window_index: position of this batch in its window, from 0.
    """

    micro_batch_size: int | None = None
    max_tokens: int | None = None
    forward_type: str = "default"
    forward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    window: int = 1
    window_index: int = 0

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "max_tokens", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, got {value}.")
        if not 0 <= self.window_index < self.window:
            raise ValueError(f"window_index {self.window_index} is outside a window of {self.window}.")

    @property
    def opens_window(self) -> bool:
        """Whether gradients start from zero with this batch."""
        return self.window_index == 0

    @property
    def closes_window(self) -> bool:
        """Whether an optimizer step follows this batch."""
        return self.window_index == self.window - 1


@dataclass(frozen=True, kw_only=True)
class LossContext:
    """What a loss needs to know of the whole (mini-)batch, so that its gradient depends on no split.

    dp_size: data-parallel ranks; losses multiply by it because engines average gradients over ranks.
    batch_num_tokens: tokens under ``response_mask`` over all ranks and micro-batches.
    global_batch_size: rows with at least one such token over all ranks and micro-batches.
    """

    dp_size: int = 1
    batch_num_tokens: int
    global_batch_size: int


LossFunction: TypeAlias = Callable[
    [Mapping[str, torch.Tensor], Batch, LossContext], tuple[torch.Tensor, dict[str, Metric]]
]
"""``(model_output, micro_batch, context) -> (scalar loss, metrics)``."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What came of one batch on this rank.

    outputs: the policy's outputs for all rows in their original order, on the CPU; filled when ``forward_only``.
    loss: sum over the micro-batches, None without a loss function. metrics: merged over the micro-batches.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)


class BaseEngine(ABC):
    """A model with its optimizer under one way of spreading them over ranks.

    ``engine_config`` is the section that the engine's plugin brings; ``optimizer_config`` None makes a forward-only
    engine (a reference policy). Collective members (marked so) must be called by every rank of the group.
    """

    def __init__(self, model_config: Any, engine_config: Any, optimizer_config: Any, checkpoint_config: Any) -> None:
        self.model_config = model_config
        self.engine_config = engine_config
        self.optimizer_config = optimizer_config
        self.checkpoint_config = checkpoint_config

    # ----------------------------------------------------------------- before construction
    @classmethod
    def problems(
        cls, engine_config: Any, optimizer_config: Any, checkpoint_config: Any, world_size: int
    ) -> Iterator[str]:
        """Yield what this engine cannot do of what is asked for with so many ranks, each as a line with its key.

        Called where the run is started, before a model is built or a worker launched. The default has no objections.
        """
        yield from ()

    @classmethod
    def wrap_plan(cls, model_config: Any, engine_config: Any, optimizer_config: Any, world_size: int) -> WrapPlanTable:
        """Say into which units the model would be cut with so many ranks, without training anything.

        ``plugrl config wrap-plan`` prints it. The default knows one unit, the model.
        """
        model_type = str(getattr(model_config, "model_type", "the model"))
        return WrapPlanTable(rows=(("(root)", model_type, "", "", "this engine does not cut models into units"),))

    @property
    def topology(self) -> Topology:
        """Copies and shards. The default is a whole copy on every data-parallel rank."""
        return Topology(dp_replicate=self.get_data_parallel_size(), dp_shard=1)

    # ----------------------------------------------------------------- construction
    @abstractmethod
    def initialize(self) -> None:
        """Build the policy, spread it, build optimizer and schedule. Collective; the vendor's extension point."""

    @property
    @abstractmethod
    def module(self) -> torch.nn.Module:
        """The policy (a :class:`plugrl.models.base.BasePolicy`), possibly sharded in place."""

    # ----------------------------------------------------------------- modes and memory
    @property
    @abstractmethod
    def is_param_offload_enabled(self) -> bool:
        """Whether parameters rest on the CPU outside the mode contexts."""

    @property
    @abstractmethod
    def is_optimizer_offload_enabled(self) -> bool:
        """Whether optimizer state rests on the CPU outside the mode contexts."""

    @abstractmethod
    def train_mode(self, **kwargs: Any) -> AbstractContextManager[Any]:
        """Return the context in which :meth:`train_batch` may be called; it loads what is off-loaded.

        Options: ``disable_auto_offload=False``, ``zero_grad_on_exit=True``.
        """

    @abstractmethod
    def eval_mode(self, **kwargs: Any) -> AbstractContextManager[Any]:
        """Return the context in which :meth:`infer_batch` may be called; option ``disable_auto_offload=False``."""

    def evaluation_weights(self) -> AbstractContextManager[Any]:
        """Return the context in which the policy has the weights it is to be judged by: averaged ones, if there are.

        Collective. The default changes nothing.
        """
        return nullcontext()

    @abstractmethod
    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        """Move the named parts to ``"cpu"`` or to the platform's device; ``grad`` needs ``model``."""

    # ----------------------------------------------------------------- training
    @abstractmethod
    def optimizer_zero_grad(self) -> None:
        """Drop all gradients."""

    @abstractmethod
    def optimizer_step(self) -> float:
        """Clip over the whole mesh, step, and return the gradient norm before clipping. Collective.

        A norm that is not finite skips the step and is returned as it is.
        """

    @abstractmethod
    def lr_scheduler_step(self) -> float:
        """Advance the schedule by one and return the learning rate now in force."""

    @abstractmethod
    def forward_backward_batch(
        self,
        data: Batch,
        loss_function: LossFunction | None,
        forward_only: bool = False,
        options: BatchOptions | None = None,
    ) -> BatchResult:
        """Run the policy over ``data`` in micro-batches and accumulate gradients unless ``forward_only``. Collective.

        Every rank runs the same number of micro-batches, see :func:`plugrl.engines.batching.split_micro_batches`.
        """

    def train_batch(
        self,
        data: Batch,
        loss_function: LossFunction,
        options: BatchOptions | None = None,
        update_lr_scheduler: bool = True,
    ) -> BatchResult:
        """Accumulate gradients of ``data`` and, at the end of a window, do one optimizer step. Collective.

        The metrics gain ``grad_norm`` with an optimizer step and ``lr`` when the schedule advances.
        ``update_lr_scheduler=False`` leaves the schedule alone: it counts trainer steps, of which one may hold several
        mini-batches; the caller advances it with the last one.
        """
        options = options or BatchOptions()
        if options.opens_window:
            self.optimizer_zero_grad()
        result = self.forward_backward_batch(data, loss_function, forward_only=False, options=options)
        metrics = dict(result.metrics)
        if options.closes_window:
            metrics["grad_norm"] = Metric(self.optimizer_step())
        if update_lr_scheduler:
            metrics["lr"] = Metric(self.lr_scheduler_step())
        return BatchResult(outputs=result.outputs, loss=result.loss, metrics=metrics)

    def infer_batch(
        self, data: Batch, loss_function: LossFunction | None = None, options: BatchOptions | None = None
    ) -> BatchResult:
        """Run forward only, without gradients, and return the outputs of all rows. Collective."""
        with torch.no_grad():
            return self.forward_backward_batch(data, loss_function, forward_only=True, options=options)

    # ----------------------------------------------------------------- weights
    @abstractmethod
    def get_per_tensor_param(
        self, merged: bool = True
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Return a stream of (published name, full tensor), and the configuration of the adapter it is of.

        Names are those of the model's own checkpoints, and what an adapter adds is in the weights: who receives them
        needs to know of none, and the second value is None. ``merged=False`` streams the tensors of the adapter alone,
        with its configuration; without an adapter it is the same as ``merged=True``. Collective: all ranks consume the
        stream to its end.
        """

    def get_unmerged_param(self) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Return a stream as :meth:`get_per_tensor_param`, in which frozen weights and adapter stand apart.

        The second value is the adapter's configuration. The default, for engines without adapters, merges. Collective.
        """
        return self.get_per_tensor_param()[0], None

    def frozen_names(self, merged: bool = True) -> frozenset[str]:
        """Return the published names of tensors that training never changes, as far as the engine knows.

        ``merged`` says which of the two streams they are names of. The default knows none.
        """
        return frozenset()

    def disable_adapter(self) -> AbstractContextManager[Any]:
        """Return the context in which adapters are off, which turns the policy into its own reference."""
        return nullcontext()

    @abstractmethod
    def save_checkpoint(self, local_path: str, global_step: int = 0, **kwargs: Any) -> None:
        """Write ``pretrained_model/`` and ``training_state/`` into the existing folder ``local_path``. Collective.

        Whatever the layout of this engine, another one must be able to read it; see :mod:`plugrl.checkpoints`.
        """

    @abstractmethod
    def load_checkpoint(self, local_path: str, **kwargs: Any) -> None:
        """Restore what :meth:`save_checkpoint` wrote, also under another world size. Collective.

        Raises CheckpointError naming the file or the tensor that does not fit.
        """

    def export_state(self) -> EngineState:
        """Return this rank's share of the whole state, for an engine with another number of ranks. Collective.

        The default raises UnsupportedCapability: such a trainer cannot be scaled while it runs.
        """
        raise UnsupportedCapability(f"{type(self).__name__} cannot hand over its state.")

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """Return the blocks of another engine's state, as wholes described by ``specs``, that this rank needs."""
        raise UnsupportedCapability(f"{type(self).__name__} cannot take over a state.")

    def import_state(self, parts: StateParts, values: Mapping[str, Any], seed: int) -> None:
        """Take over the state of another engine under this one's layout. Collective.

        ``parts`` has the blocks that :meth:`wanted_state` named. ``seed`` is for the random state of ranks that the
        other engine did not have.
        """
        raise UnsupportedCapability(f"{type(self).__name__} cannot take over a state.")

    # ----------------------------------------------------------------- data parallelism
    @abstractmethod
    def get_data_parallel_size(self) -> int:
        """Number of ranks that see different data."""

    @abstractmethod
    def get_data_parallel_rank(self) -> int:
        """Position of this rank among them."""

    @abstractmethod
    def get_data_parallel_group(self) -> Any:
        """Their process group, or None for a single process."""

    @abstractmethod
    def is_mp_src_rank_with_outputs(self) -> bool:
        """Whether this rank holds the outputs of its data-parallel slice (False on other model-parallel ranks)."""
