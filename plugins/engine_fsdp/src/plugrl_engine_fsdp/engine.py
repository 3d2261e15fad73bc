"""What the engines have in common: everything but the way in which parameters are spread over ranks.

That is the layout's: how the policy is wrapped, what is called in training, when gradients are synchronised.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from pydantic import BaseModel

from plugrl.engines.base import BaseEngine, Batch, BatchOptions, BatchResult, LossFunction
from plugrl.engines.state import Block, EngineState, StateParts, StateSpec
from plugrl.engines.topology import Topology
from plugrl.engines.wrap_plan import WrapPlanTable
from plugrl.errors import ConfigError
from plugrl.metric import Metric
from plugrl.platforms import get_platform
from plugrl_engine_fsdp import checkpoint, export, handover, requirements, residency
from plugrl_engine_fsdp.building import build_policy, hand_out_weights
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import backend_problems
from plugrl_engine_fsdp.config.problems import WrapConfigError
from plugrl_engine_fsdp.distributed import rank, world_size
from plugrl_engine_fsdp.ema import Ema
from plugrl_engine_fsdp.layouts import Layout, LayoutContext, choose_layout
from plugrl_engine_fsdp.loss_scale import LossScale
from plugrl_engine_fsdp.names import published_tensors
from plugrl_engine_fsdp.optim import (
    OptimizerSettings,
    Schedule,
    build_optimizer,
    check_fp32_masters,
    parameter_groups,
)
from plugrl_engine_fsdp.passes import run_batch
from plugrl_engine_fsdp.precision import resolve_precision
from plugrl_engine_fsdp.update import apply_update
from plugrl_engine_fsdp.wrapping.report import planned_table


class DataParallelEngine(BaseEngine):
    """An engine in which every rank sees different rows of a batch."""

    def __init__(
        self,
        model_config: Any,
        engine_config: Any = None,
        optimizer_config: Any = None,
        checkpoint_config: Any = None,
    ) -> None:
        super().__init__(model_config, engine_config, optimizer_config, checkpoint_config)
        self.config = as_fsdp_config(engine_config)
        self.settings = None if optimizer_config is None else OptimizerSettings.from_config(optimizer_config)
        if self.config.forward_only:
            self.settings = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.schedule: Schedule | None = None
        self.scaler: LossScale | None = None
        self.ema: Ema | None = None
        self.skipped_steps = 0
        self.updates = 0
        self.saver = checkpoint.Saver()
        self.layout: Layout
        self._policy: torch.nn.Module | None = None

    strategy: ClassVar[str]
    """The name of the backend."""

    # ----------------------------------------------------------------- the layout
    @classmethod
    def problems(
        cls, engine_config: Any, optimizer_config: Any, checkpoint_config: Any, world_size: int
    ) -> Iterator[str]:
        """Yield what does not go together, or not with so many ranks; see the contract."""
        config = as_fsdp_config(engine_config)
        trainable = optimizer_config is not None and not config.forward_only
        yield from requirements.problems(cls, config, checkpoint_config, trainable=trainable, world_size=world_size)

    @classmethod
    def wrap_plan(cls, model_config: Any, engine_config: Any, optimizer_config: Any, world_size: int) -> WrapPlanTable:
        """As the contract says, from the model on the meta device where it can be built there."""
        config = as_fsdp_config(engine_config)
        trainable = optimizer_config is not None and not config.forward_only
        return planned_table(cls, config, model_config, trainable=trainable, world_size=world_size)

    @classmethod
    @abstractmethod
    def resolve_topology(cls, config: FsdpConfig, world_size: int) -> Topology:
        """Copies and shards for so many ranks. Raises ConfigError when the configuration does not fit them."""

    @classmethod
    def layout_class(cls, config: FsdpConfig, topology: Topology, trainable: bool) -> type[Layout]:
        """How a policy is spread for that topology."""
        return choose_layout(topology, trainable=trainable)

    @property
    def topology(self) -> Topology:
        """Copies and shards as resolved for this process group."""
        return self.layout.context.topology

    # ----------------------------------------------------------------- construction
    def initialize(self) -> None:
        """Build the policy, spread it with the weights of rank 0, then build the optimizer."""
        WrapConfigError.raise_if(backend_problems(self.config, self.strategy))
        platform = get_platform()
        self.device = _device_of(platform)
        self.trainable = self.settings is not None
        self.precision = resolve_precision(self.config, _read(self.model_config, "precision"), self.trainable, platform)
        topology = self.resolve_topology(self.config, world_size())
        problem = checkpoint.format_problem(self.checkpoint_config, topology) if self.trainable else None
        if problem is not None:
            raise ConfigError(problem)
        layout = self.layout_class(self.config, topology, self.trainable)
        built = build_policy(
            self.model_config,
            self.precision,
            trainable=self.trainable,
            device=self.device,
            from_host=layout.spreads_from_host,
        )
        policy: Any = built.policy
        self._policy, self.precision = policy, built.precision
        context = LayoutContext(
            config=self.config,
            topology=topology,
            precision=self.precision,
            device=self.device,
            trainable=self.trainable,
        )
        self.layout = layout(context)
        critic = policy.critic_parameters() if self.trainable else ()
        self.layout.spread(policy)
        hand_out_weights(built, device=self.device, shards_rest_on=self.layout.shards_rest_on)
        if self.settings is not None:
            check_fp32_masters(self.settings, self.layout)
            if not self.settings.use_fp32_master_params:
                self.layout.check_native_adamw(policy)
            self.optimizer = build_optimizer(parameter_groups(policy, self.settings, critic), self.settings)
            self.schedule = Schedule(self.optimizer, self.settings)
            self.scaler = LossScale(self.config.grad_scaler) if self.precision.needs_loss_scale else None
            if self.config.ema.enable:
                trained = [name for _, name, _ in self.layout.optimizer_parameters(policy, self.optimizer)]
                self.ema = Ema(self.config.ema, checkpoint.weights(self), trained)
        residency.offload(self, model=self.is_param_offload_enabled, optimizer=self.is_optimizer_offload_enabled)

    @property
    def module(self) -> torch.nn.Module:
        """The policy; its parameters are this rank's shards under fsdp2."""
        if self._policy is None:
            raise RuntimeError("initialize() builds the policy; it was not called")
        return self._policy

    # ----------------------------------------------------------------- modes and memory
    @property
    def is_param_offload_enabled(self) -> bool:
        """``fsdp_config.param_offload``."""
        return self.config.param_offload

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        """``fsdp_config.optimizer_offload``."""
        return self.config.optimizer_offload

    def train_mode(
        self, disable_auto_offload: bool = False, zero_grad_on_exit: bool = True
    ) -> AbstractContextManager[None]:
        """Load what is off-loaded, train inside, off-load again; gradients are dropped on exit or after an error."""
        return residency.training(self, auto_offload=not disable_auto_offload, zero_grad_on_exit=zero_grad_on_exit)

    def eval_mode(self, disable_auto_offload: bool = False) -> AbstractContextManager[None]:
        """Load off-loaded parameters, evaluate inside, off-load again.

        The optimizer state stays where it is, and so do the gradients of an accumulation window that is open.
        """
        return residency.evaluation(self, auto_offload=not disable_auto_offload)

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        """Move the named parts to ``"cpu"`` or to the platform's device.

        Gradients always lie where their parameters are: with ``model`` they move along, or are dropped when ``grad`` is
        False. ValueError for ``grad`` without ``model`` when there are gradients to move.
        """
        target = torch.device("cpu") if torch.device(device).type == "cpu" else self.device
        residency.move(self, target, model=model, optimizer=optimizer, grad=grad)

    # ----------------------------------------------------------------- training
    def forward_backward_batch(
        self,
        data: Batch,
        loss_function: LossFunction | None,
        forward_only: bool = False,
        options: BatchOptions | None = None,
    ) -> BatchResult:
        """Walk through ``data``; see the contract. One collective precedes the micro-batches, none lies between them.

        ``loss`` is this rank's: the mean over ranks is the loss of the whole batch.
        """
        options = options or BatchOptions()
        if not forward_only and (loss_function is None or not self.trainable):
            raise ValueError("a backward pass needs a loss function and an engine with an optimizer")
        return run_batch(self, data, loss_function, options, forward_only=forward_only)

    def train_batch(
        self,
        data: Batch,
        loss_function: LossFunction,
        options: BatchOptions | None = None,
        update_lr_scheduler: bool = True,
    ) -> BatchResult:
        """As the contract says; the metrics also count the steps skipped so far for a gradient that was not finite."""
        result = super().train_batch(data, loss_function, options, update_lr_scheduler)
        self.layout.watch.report()
        result.metrics["skipped_steps"] = Metric(self.skipped_steps, "max")
        if self.scaler is not None:
            result.metrics["loss_scale"] = Metric(self.scaler.scale)
        return result

    def optimizer_zero_grad(self) -> None:
        """Drop all gradients."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def optimizer_step(self) -> float:
        """Clip over the whole mesh and step; a norm that is not finite skips the step, counts it and is returned."""
        optimizer, settings = self._optimizer()
        return apply_update(self, optimizer, settings.clip_grad)

    @property
    def loss_factor(self) -> float:
        """The loss scale of fp16 training, 1 otherwise."""
        return 1.0 if self.scaler is None else self.scaler.scale

    def lr_scheduler_step(self) -> float:
        """Advance the schedule by one and return the learning rate of the next step."""
        self._optimizer()
        assert self.schedule is not None
        return self.schedule.step()

    def _optimizer(self) -> tuple[torch.optim.Optimizer, OptimizerSettings]:
        if self.optimizer is None or self.settings is None:
            raise RuntimeError("this engine has no optimizer: it is forward-only, or initialize() was not called")
        return self.optimizer, self.settings

    # ----------------------------------------------------------------- weights and checkpoints
    def evaluation_weights(self) -> AbstractContextManager[None]:
        """The averaged weights inside the context, where they are kept and meant for it. Collective."""
        if self.ema is None or not self.config.ema.use_for_eval:
            return nullcontext()
        return self.ema.applied(
            lambda: checkpoint.weights(self), lambda tensors: self.layout.loaded(self.module, tensors)
        )

    def get_per_tensor_param(
        self, merged: bool = True
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Stream (published name, full tensor on the device), from parameters that may be off-loaded. Collective."""
        policy: Any = self.module
        if merged:
            return policy.merged_tensors(export.stream(self)), None
        config = policy.adapter_config()
        return export.stream(self, None if config is None else policy.is_saved), config

    def get_unmerged_param(self) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Stream all full tensors, an adapter's beside the frozen ones. Collective."""
        policy: Any = self.module
        return export.stream(self), policy.adapter_config()

    def frozen_names(self, merged: bool = True) -> frozenset[str]:
        """The parameters without gradients; with an adapter that is merged in, none is what it was."""
        policy: Any = self.module
        if not self.trainable or (merged and policy.adapter_config() is not None):
            return frozenset()
        return frozenset(
            name for name, tensor in published_tensors(policy)
            if isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
        )  # fmt: skip

    def disable_adapter(self) -> AbstractContextManager[Any]:
        """The context in which the frozen weights alone compute."""
        policy: Any = self.module
        return policy.adapter_disabled()

    def save_checkpoint(
        self, local_path: str, global_step: int = 0, progress: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Write ``pretrained_model/`` and ``training_state/``, perhaps in the background. Collective.

        ``progress`` goes into ``training_step.json``: ``batch_size``, ``grad_accum_steps``, ``epoch``, ``seed``, ....
        """
        self.saver.save(self, Path(local_path), global_step, progress)

    def load_checkpoint(self, local_path: str, progress: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Restore weights, optimizer, schedule and random state, whatever layout wrote them. Collective.

        ``progress``: this run's settings, to be compared with those that were saved.
        """
        checkpoint.load(self, Path(local_path), progress)

    def finish_saving(self) -> None:
        """Wait until nothing of this rank is written in the background."""
        self.saver.wait()

    def export_state(self) -> EngineState:
        """This rank's share of everything that a checkpoint would hold. Collective."""
        return handover.export_state(self)

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """What this rank holds of such a state."""
        return handover.wanted_state(self, specs)

    def import_state(self, parts: StateParts, values: Mapping[str, Any], seed: int) -> None:
        """Take over what another engine exported, whatever its layout. Collective."""
        handover.import_state(self, parts, values, seed)

    # ----------------------------------------------------------------- data parallelism
    def get_data_parallel_size(self) -> int:
        """All ranks are data-parallel."""
        return world_size()

    def get_data_parallel_rank(self) -> int:
        """This process's rank."""
        return rank()

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """The default group, None without one."""
        return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None

    def is_mp_src_rank_with_outputs(self) -> bool:
        """True: there is no model parallelism."""
        return True


def as_fsdp_config(section: Any) -> FsdpConfig:
    """Take our own section, a mapping with its keys, or None for the defaults."""
    if isinstance(section, FsdpConfig):
        return section
    if isinstance(section, BaseModel):
        section = section.model_dump()
    return FsdpConfig.model_validate({} if section is None else dict(section))


def _device_of(platform: Any) -> torch.device:
    name = platform.device_name
    return torch.device(name) if name == "cpu" else torch.device(name, platform.current_device())


def _read(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
